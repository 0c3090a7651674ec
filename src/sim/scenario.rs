//! One random setting of everything: device, scheduler, requests and what befalls them.
//!
//! Pools are small, so that blocks run short all the time; the smallest holds the longest sequence and little else.

use super::Random;
use crate::base::{BLOCK_TOKENS, Epoch, RequestId, TokenId};
use crate::runner::mock::{Fault, MockOptions};
use crate::sampling::row::{ALL_LOGPROBS, HAS_MASK, IS_GUIDED};
use crate::sampling::{SamplingParams, SamplingRow};
use crate::sched::{NewSequence, Policy, Preemption, SchedulerConfig};

/// The token that may stop a sequence.
pub const EOS: TokenId = 3;

/// Most tokens of one sequence.
const MAX_MODEL_LEN: usize = 160;

/// A setting. The same seed and number give the same one.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How the scheduler decides.
    pub config: SchedulerConfig,
    /// The device.
    pub options: MockOptions,
    /// Requests in all.
    pub requests: usize,
    /// Chance of an arrival in each turn.
    pub arrival_rate: f64,
    /// How often what happens, in each turn.
    pub rates: Rates,
    /// Choices of requests: lengths, prefixes, salts.
    pub habits: Habits,
}

/// Chances in each turn.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// A live sequence is cancelled.
    pub cancel: f64,
    /// The prefix cache is reset.
    pub reset: f64,
    /// The scheduler is paused, or resumed if it is.
    pub pause: f64,
    /// Everything is requeued, as after the loss of a device.
    pub requeue: f64,
    /// The step limit changes.
    pub step_limit: f64,
    /// The costs that `auto` weighs change.
    pub costs: f64,
}

impl Rates {
    /// Nothing happens.
    pub const CALM: Self = Self { cancel: 0.0, reset: 0.0, pause: 0.0, requeue: 0.0, step_limit: 0.0, costs: 0.0 };
}

/// What requests are like.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Prompts of one family share their beginning.
    pub families: usize,
    /// Most tokens of the shared beginning.
    pub shared: usize,
    /// Most tokens of one's own.
    pub own: usize,
    /// Most tokens to generate.
    pub output: usize,
    /// Chance of more than one sequence for a prompt.
    pub fork: f64,
    /// Levels of priority.
    pub priorities: usize,
    /// Chance of a deadline.
    pub deadline: f64,
    /// Chance that a request is held back at first.
    pub held: f64,
    /// Chance that a request is guided token by token.
    pub guided: f64,
}

impl Scenario {
    /// Setting `number` of `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        let random = &mut Random::stream(seed, 2 * number);
        let options = device(random);
        let config = scheduler(random, &options);
        let rarely = |random: &mut Random, among: f64, rate: f64| if random.chance(among) { rate } else { 0.0 };
        let rates = Rates {
            cancel: rarely(random, 0.5, 0.05),
            reset: rarely(random, 0.3, 0.03),
            pause: rarely(random, 0.2, 0.03),
            requeue: rarely(random, 0.2, 0.01),
            step_limit: rarely(random, 0.2, 0.1),
            costs: rarely(random, 0.5, 0.05),
        };
        let habits = Habits {
            families: random.between(1, 4),
            shared: random.pick(&[0, 20, 70]),
            own: random.pick(&[3, 12, 40]),
            output: random.pick(&[4, 30, 60, 90]),
            fork: random.pick(&[0.0, 0.0, 0.3]),
            priorities: random.pick(&[1, 3]),
            deadline: random.pick(&[0.0, 0.5, 1.0]),
            held: rarely(random, 0.2, 0.1),
            guided: rarely(random, 0.3, 0.5),
        };
        let arrival_rate = random.pick(&[0.1, 0.3, 0.6, 0.9]);
        Self { config, options, requests: random.between(4, 50), arrival_rate, rates, habits }
    }

    /// Request `index` of one prompt, in as many sequences as it has; the first is the one whose prompt the others share.
    /// Arrival, deadline and parent are the caller's to fill in.
    pub fn request(&self, random: &mut Random, index: usize) -> Vec<NewSequence> {
        let Habits { families, shared, own, output, fork, priorities, held, guided, .. } = self.habits;
        let family = random.below(families) as u32;
        let shared = random.between(0, shared) as u32;
        let own = random.between(1, own) as u32;
        // Families use ids from 10 on, own tokens depend on the request: two seldom agree beyond the shared part.
        let prompt: Vec<TokenId> = (0..shared)
            .map(|at| 10 + family * 100 + at)
            .chain((0..own).map(|at| 500 + (index as u32 * 37 + at * 7) % 400))
            .collect();
        let siblings = if random.chance(fork) { random.between(2, 4) } else { 1 };
        let drawn = siblings > 1 || random.chance(0.3);
        let stop_tokens = if random.chance(0.5) { vec![EOS] } else { Vec::new() };
        let params = SamplingParams { temperature: if drawn { 1.0 } else { 0.0 }, ..SamplingParams::default() };
        let score = siblings == 1 && random.chance(0.1);
        let max_tokens = if score && random.chance(0.3) { 0 } else { random.between(1, output) as u32 };
        let cache_salt = random.chance(0.2).then(|| format!("salt {}", random.below(2)));
        let priority = random.below(priorities) as i32;
        let held = siblings == 1 && random.chance(held);
        let wants = [0, 0, 0, 1, 21, 60, ALL_LOGPROBS];
        let logprobs = (random.pick(&wants), random.pick(&wants));
        let guided = if random.chance(guided) { HAS_MASK | IS_GUIDED } else { 0 };
        (0..siblings)
            .map(|_| {
                let mut sampling = SamplingRow::new(&params, random.word(), &stop_tokens);
                sampling.flags |= guided;
                (sampling.logprobs, sampling.prompt_logprobs) = logprobs;
                NewSequence {
                    stop_tokens: stop_tokens.clone(),
                    cache_salt: cache_salt.clone(),
                    score,
                    priority,
                    held,
                    ..NewSequence::new(RequestId(index as u64), prompt.clone(), max_tokens, sampling)
                }
            })
            .collect()
    }
}

fn device(random: &mut Random) -> MockOptions {
    let mut options = MockOptions {
        seed: random.word(),
        eos: EOS,
        eos_per_mille: random.pick(&[0, 40]),
        bad_logits_per_mille: random.pick(&[0, 0, 0, 0, 8]),
        ..MockOptions::default()
    };
    let longest = MAX_MODEL_LEN.div_ceil(BLOCK_TOKENS);
    options.capacity.block_count = random.pick(&[longest, longest + 1, longest + 3, longest + 6, 3 * longest]) as u32;
    options.capacity.host_blocks = random.pick(&[0, 1, 5, longest as u32, 40]);
    options.capacity.logprob_entries = options.capacity.vocab_size * random.pick(&[2, 3, 50]);
    options.capacity.window = random.pick(&[None, None, None, Some(16), Some(40)]);
    if random.chance(0.25) {
        let epoch = Epoch(random.between(1, 60) as u64);
        options.fault = Some(random.pick(&[Fault::LostAtSubmit(epoch), Fault::LostAtPoll(epoch)]));
    }
    options
}

fn scheduler(random: &mut Random, options: &MockOptions) -> SchedulerConfig {
    let has_host = options.capacity.host_blocks > 0;
    let chunked_prefill = random.chance(0.85);
    let max_num_seqs = random.between(1, 7);
    let long_prefill_token_threshold = if chunked_prefill && random.chance(0.4) { random.between(1, 32) } else { 0 };
    let max_num_partial_prefills = if chunked_prefill { random.pick(&[1, 1, 2, 4]) } else { 1 };
    let max_long_partial_prefills = random.between(1, max_num_partial_prefills);
    let prefix_cache = random.chance(0.8);
    let preemption = match has_host {
        true => random.pick(&[Preemption::Recompute, Preemption::Swap, Preemption::Auto]),
        false => Preemption::Recompute,
    };
    SchedulerConfig {
        max_num_seqs,
        max_num_batched_tokens: if chunked_prefill { random.between(max_num_seqs, 80) } else { MAX_MODEL_LEN },
        max_model_len: MAX_MODEL_LEN,
        long_prefill_token_threshold,
        chunked_prefill,
        prefix_cache,
        max_steps: random.between(1, 8) as u16,
        max_in_flight: random.between(1, 3),
        policy: random.pick(&[Policy::Fcfs, Policy::Priority, Policy::Edf, Policy::PhaseSplit]),
        aging_micros: random.pick(&[1000, 50_000, 10_000_000]),
        deadline_micros: random.pick(&[10_000, 1_000_000]),
        max_num_partial_prefills,
        max_long_partial_prefills,
        watermark: random.pick(&[0.0, 0.0, 0.1]),
        preemption,
        host_cache: has_host && prefix_cache && random.chance(0.5),
        ..SchedulerConfig::for_capacity(&options.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gives_the_same_setting_each_time_and_neighbours_differ() {
        let text = |seed, number| format!("{:?}", Scenario::new(seed, number));
        assert_eq!(text(1, 5), text(1, 5));
        assert_ne!(text(1, 5), text(1, 6));
        assert_ne!(text(1, 5), text(2, 5));
    }

    #[test]
    fn every_choice_comes_up() {
        let settings: Vec<Scenario> = (0..300).map(|number| Scenario::new(9, number)).collect();
        let count = |holds: &dyn Fn(&Scenario) -> bool| settings.iter().filter(|one| holds(one)).count();
        for policy in [Policy::Fcfs, Policy::Priority, Policy::Edf, Policy::PhaseSplit] {
            assert!(count(&|one| one.config.policy == policy) > 30, "{policy:?}");
        }
        for preemption in [Preemption::Recompute, Preemption::Swap, Preemption::Auto] {
            assert!(count(&|one| one.config.preemption == preemption) > 30, "{preemption:?}");
        }
        assert!(count(&|one| one.options.capacity.window.is_some()) > 60);
        assert!(count(&|one| one.config.host_cache) > 60);
        assert!(count(&|one| one.habits.fork > 0.0) > 60);
        assert!(count(&|one| one.config.max_num_partial_prefills > 1) > 60);
        assert!(count(&|one| one.options.fault.is_some()) > 30);
        assert!(count(&|one| one.habits.guided > 0.0) > 60);
    }
}
