//! Lives a scenario on the mock runner: random calls in random order, and after each one everything that must hold.
//!
//! A step is one call that changes the scheduler. What is checked: the invariants of the scheduler and of every plan; the
//! mock's own (no block read that was not written for this context, none written while shared); the [`Ledger`]'s books; that
//! something can always move; and at the end that every block is free and every sum agrees.

use super::ledger::{Ledger, Tally};
use super::scenario::Rates;
use super::{Random, Scenario};
use crate::base::SeqId;
use crate::error::ErrorKind;
use crate::runner::mock::{MockOptions, MockRunner};
use crate::runner::{Costs, ModelRunner, RunError, StepResult, Wait};
use crate::sampling::lists::mask_words;
use crate::sched::plan::StepPlan;
use crate::sched::{Pause, SchedEvent, Scheduler};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// What a life came to; readable at any moment, also after a panic.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Calls that changed the scheduler.
    pub steps: u64,
    /// The last of them, oldest first.
    pub calls: VecDeque<String>,
    /// Sums of events and plans.
    pub tally: Tally,
}

/// Calls that a finding shows.
const CALLS_KEPT: usize = 40;

/// Turns without an end in sight, after the last arrival. The longest life takes a tenth.
const MAX_TURNS: u32 = 40_000;

/// Turns after the last arrival in which resets, cancels and pauses go on. Then they stop, or a prompt that is read token by
/// token would never come to its end between two resets.
const STORMY_TURNS: u32 = 2000;

/// Turns after which a pause ends at the latest.
const PAUSED_TURNS: u32 = 30;

struct Machine<'a> {
    scenario: &'a Scenario,
    random: Random,
    runner: MockRunner,
    scheduler: Scheduler,
    ledger: Ledger,
    progress: &'a mut Progress,
    arrived: usize,
    held: Vec<SeqId>,
    guided: BTreeSet<SeqId>,
    /// Of these, those whose last token has come and whose next one has no mask.
    unready: Vec<SeqId>,
    /// Turns since the scheduler was paused.
    paused: u32,
    /// Nothing more befalls the requests.
    calm: bool,
    plan: StepPlan,
    result: StepResult,
    events: Vec<SchedEvent>,
}

type Life<T> = Result<T, String>;

/// Runs scenario `number` of `seed` to its end.
///
/// # Errors
/// What does not hold.
///
/// # Panics
/// If the scheduler finds it out itself.
pub fn live(seed: u64, number: u64, progress: &mut Progress) -> Life<()> {
    let scenario = Scenario::new(seed, number);
    let scheduler = Scheduler::new(scenario.config.clone(), scenario.options.capacity)
        .map_err(|error| format!("the configuration is refused: {error}"))?;
    let mut machine = Machine {
        random: Random::stream(seed, 2 * number + 1),
        runner: MockRunner::new(scenario.options.clone()),
        ledger: Ledger::new(scenario.config.clone()),
        scenario: &scenario,
        scheduler,
        progress,
        arrived: 0,
        held: Vec::new(),
        guided: BTreeSet::new(),
        unready: Vec::new(),
        paused: 0,
        calm: false,
        plan: StepPlan::default(),
        result: StepResult::default(),
        events: Vec::new(),
    };
    let outcome = machine.run();
    machine.progress.tally = machine.ledger.tally;
    outcome
}

impl Machine<'_> {
    fn run(&mut self) -> Life<()> {
        let mut turns = 0;
        while self.arrived < self.scenario.requests || self.scheduler.has_work() {
            turns += u32::from(self.arrived == self.scenario.requests);
            if turns > MAX_TURNS {
                return Err(format!("no end in sight: {:?}", self.scheduler.stats()));
            }
            self.calm = turns > STORMY_TURNS;
            self.turn()?;
        }
        // Host blocks that the last plan loaded from are let go when the next one is asked for.
        self.scheduler.set_pause(Pause::None);
        if self.schedule()? != Scheduled::Nothing {
            return Err("a plan without work".into());
        }
        self.ledger.close()?;
        self.settle()
    }

    fn turn(&mut self) -> Life<()> {
        self.arrive()?;
        self.meddle()?;
        let mut alive = true;
        for _ in 0..self.random.between(1, 3) {
            match self.schedule()? {
                Scheduled::Submitted => {}
                Scheduled::Nothing => break,
                Scheduled::Lost => {
                    alive = false;
                    break;
                }
            }
        }
        if alive {
            alive = self.poll()?;
        }
        if !alive {
            self.replace_device()?;
        }
        Ok(())
    }

    fn note(&mut self, call: String) {
        self.progress.steps += 1;
        if self.progress.calls.len() == CALLS_KEPT {
            self.progress.calls.pop_front();
        }
        self.progress.calls.push_back(call);
    }

    /// Books one call: its events and the invariants.
    fn step(&mut self, call: impl FnOnce() -> String) -> Life<()> {
        self.note(call());
        self.scheduler.check();
        self.book()
    }

    fn book(&mut self) -> Life<()> {
        let booked = self.ledger.take(&self.events);
        self.events.clear();
        booked
    }

    fn arrive(&mut self) -> Life<()> {
        while self.arrived < self.scenario.requests && self.random.chance(self.scenario.arrival_rate) {
            let siblings = self.scenario.request(&mut self.random, self.arrived);
            self.arrived += 1;
            let now = self.runner.now_micros();
            let deadline = self.random.chance(self.scenario.habits.deadline);
            let deadline_micros = deadline.then(|| now + self.random.between(1000, 300_000) as u64);
            let mut leader = None;
            for mut new in siblings {
                (new.arrival_micros, new.deadline_micros, new.fork_of) = (now, deadline_micros, leader);
                let (held, guided) = (new.held, new.sampling.is_guided());
                let seq = match self.scheduler.add(new.clone(), &mut self.events) {
                    Ok(seq) => seq,
                    Err(error) => return Err(format!("a request that fits is refused: {error}")),
                };
                self.ledger.accept(seq, &new, &self.scenario.options)?;
                self.held.extend(held.then_some(seq));
                self.guided.extend(guided.then_some(seq));
                leader = leader.or(Some(seq));
                self.step(|| format!("add {seq}"))?;
            }
        }
        Ok(())
    }

    /// What users and operators do meanwhile.
    fn meddle(&mut self) -> Life<()> {
        let rates = if self.calm { Rates::CALM } else { self.scenario.rates };
        if self.random.chance(rates.cancel)
            && let Some(seq) = self.random_live()
        {
            self.scheduler.finish(seq);
            self.ledger.cancel(seq);
            self.step(|| format!("finish {seq}"))?;
        }
        if !self.held.is_empty() && self.random.chance(0.2) {
            let seq = self.held.swap_remove(self.random.below(self.held.len()));
            self.scheduler.release(seq);
            self.step(|| format!("release {seq}"))?;
        }
        self.guide()?;
        if self.random.chance(rates.reset) {
            self.reset()?;
        }
        if self.scheduler.pause() != Pause::None {
            self.paused += 1;
        }
        if self.random.chance(rates.pause) || self.paused > PAUSED_TURNS {
            let pause = match self.scheduler.pause() {
                Pause::None => self.random.pick(&[Pause::New, Pause::All]),
                _ => Pause::None,
            };
            self.paused = 0;
            self.ledger.tally.pauses += u64::from(pause != Pause::None);
            self.scheduler.set_pause(pause);
            self.step(|| format!("pause {pause:?}"))?;
        }
        if self.random.chance(rates.step_limit) {
            let steps = self.random.between(1, 8) as u16;
            self.scheduler.set_step_limit(steps);
            self.step(|| format!("step limit {steps}"))?;
            let tokens = self.random.pick(&[1, 8, u32::MAX]);
            self.scheduler.set_prompt_limit(tokens);
            self.step(|| format!("prompt limit {tokens}"))?;
        }
        if self.random.chance(rates.costs) {
            let speeds = [0.0, 1.0, 100.0];
            let costs = Costs {
                prefill_micros_per_token: self.random.pick(&speeds),
                move_micros_per_block: self.random.pick(&speeds),
            };
            self.scheduler.set_costs(costs);
            self.step(|| format!("{costs:?}"))?;
        }
        if self.random.chance(rates.requeue) {
            self.replace_device()?;
        }
        Ok(())
    }

    /// What the grammar's side does: some masks come, some of them after tokens without a choice.
    fn guide(&mut self) -> Life<()> {
        for seq in std::mem::take(&mut self.unready) {
            if self.random.chance(0.4) {
                self.unready.push(seq);
                continue;
            }
            let forced = if self.random.chance(0.3) { self.random.between(1, 20) } else { 0 };
            let next = self.ledger.yet_to_come(seq);
            let tokens = next[..forced.min(next.len())].to_vec();
            self.scheduler.append(seq, &tokens, &mut self.events);
            self.ledger.tally.appended += tokens.len() as u64;
            self.step(|| format!("append {tokens:?} to {seq}"))?;
            self.scheduler.set_ready(seq);
            self.step(|| format!("ready {seq}"))?;
        }
        Ok(())
    }

    fn random_live(&mut self) -> Option<SeqId> {
        let count = self.ledger.live().count();
        let nth = self.random.below(count);
        self.ledger.live().nth(nth)
    }

    fn reset(&mut self) -> Life<()> {
        let preempt = self.random.chance(0.5);
        let idle = self.scheduler.stats().running == 0 && self.scheduler.stats().host_used == 0;
        match self.scheduler.reset_prefix_cache(preempt, &mut self.events) {
            Ok(()) => {
                self.ledger.tally.resets += 1;
                let stats = self.scheduler.stats();
                if stats.blocks_cached + stats.host_cached > 0 {
                    return Err(format!("a reset cache holds blocks: {stats:?}"));
                }
            }
            Err(error) if error.kind() == ErrorKind::Busy && !preempt && !idle => {}
            Err(error) => return Err(format!("the reset is refused without need: {error}")),
        }
        self.step(|| format!("reset, preempt {preempt}"))
    }

    fn schedule(&mut self) -> Life<Scheduled> {
        let before = self.events.len();
        let scheduled = self.scheduler.schedule(&mut self.plan, &mut self.events);
        let told = self.events.len() > before;
        if !scheduled {
            let stuck = self.scheduler.in_flight() == 0
                && self.scheduler.has_work()
                && !self.scheduler.awaits_caller()
                && !told;
            self.step(|| "schedule nothing".into())?;
            return match stuck {
                true => Err(format!("work is left, but nothing moves: {:?}", self.scheduler.stats())),
                false => Ok(Scheduled::Nothing),
            };
        }
        let text = self.plan.to_string();
        self.note(format!("schedule {text}"));
        self.scheduler.check_plan(&self.plan);
        if self.scheduler.pause() == Pause::All {
            return Err("a paused scheduler submits".into());
        }
        self.scheduler.check();
        self.book()?;
        self.ledger.submit(&self.plan)?;
        let words = mask_words(self.scenario.options.capacity.vocab_size as usize);
        self.plan.mask_words.resize(self.plan.masks.len() * words, u32::MAX);
        match self.runner.submit(&self.plan) {
            Ok(()) => Ok(Scheduled::Submitted),
            Err(RunError::DeviceLost(_)) => Ok(Scheduled::Lost),
            Err(error) => Err(format!("the runner refuses the plan: {error}")),
        }
    }

    /// False if the device is gone.
    fn poll(&mut self) -> Life<bool> {
        let wait = match self.random.below(3) {
            0 => Wait::No,
            1 => Wait::AtMost(Duration::from_micros(1500)),
            _ => Wait::AtMost(Duration::from_secs(1)),
        };
        match self.runner.poll(wait, &mut self.result) {
            Ok(true) => {
                self.scheduler.commit(&self.result, &mut self.events);
                let came = self.events.iter().filter_map(|event| match event {
                    SchedEvent::Token { seq, .. } if self.guided.contains(seq) => Some(*seq),
                    _ => None,
                });
                self.unready.extend(came);
                let epoch = self.result.epoch;
                self.step(|| format!("commit {epoch}"))?;
                Ok(true)
            }
            Ok(false) => Ok(true),
            Err(RunError::DeviceLost(_)) => Ok(false),
            Err(error) => Err(format!("the runner fails: {error}")),
        }
    }

    fn replace_device(&mut self) -> Life<()> {
        let now = self.runner.now_micros();
        self.runner = MockRunner::new(MockOptions { fault: None, ..self.scenario.options.clone() });
        self.runner.advance(now);
        self.ledger.tally.losses += 1;
        self.scheduler.requeue_all(&mut self.events);
        self.step(|| "requeue all".into())?;
        self.ledger.requeued()
    }

    /// The books at the end.
    fn settle(&self) -> Life<()> {
        let (stats, tally) = (self.scheduler.stats(), &self.ledger.tally);
        let pairs = [
            ("waiting sequences", stats.waiting as u64, 0),
            ("running sequences", stats.running as u64, 0),
            ("free blocks", stats.blocks_free as u64, stats.blocks_total as u64),
            ("used host blocks", stats.host_used as u64, 0),
            ("preemptions", stats.preemptions, tally.preemptions),
            ("swaps", stats.swaps_out, tally.swaps),
            ("copies", stats.copies, tally.copies),
            ("evictions", stats.evictions, tally.evictions),
            ("steps", stats.steps, tally.device_steps),
            ("prefill tokens", stats.prefill_tokens, tally.prefill_tokens),
        ];
        match pairs.iter().find(|(_, is, should)| is != should) {
            Some((what, is, should)) => Err(format!("at the end there are {is} {what}, not {should}")),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduled {
    Submitted,
    Nothing,
    Lost,
}
