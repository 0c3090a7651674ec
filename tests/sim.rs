//! Long random lives of the scheduler, and what the simulator itself must be able to notice.

use octavo::base::{RequestId, TokenId};
use octavo::runner::ModelRunner;
use octavo::runner::mock::{MockOptions, MockRunner};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::{NewSequence, Policy, SchedulerConfig};
use octavo::sim::{Driver, Run, simulate};

/// Steps of the suite. `octavo sim --steps` goes further.
const STEPS: u64 = 1_000_000;

#[test]
fn random_lives_keep_every_invariant() {
    let report = simulate(20_261_129, 0, STEPS, &mut |_| ());
    if let Some(violation) = &report.violation {
        panic!(
            "{}\n{}\nin step {} of scenario {} of seed {}",
            violation.calls.join("\n"),
            violation.what,
            violation.step,
            violation.scenario,
            report.seed
        );
    }
    assert!(report.steps >= STEPS);
    // The random lives would prove little if they never got into trouble.
    let tally = &report.tally;
    let rich = [
        ("preemptions", tally.preemptions),
        ("swaps", tally.swaps),
        ("saves", tally.saves),
        ("loads", tally.loads),
        ("copies", tally.copies),
        ("forks", tally.forks),
        ("hit tokens", tally.hit_tokens),
        ("hit tokens from the host", tally.host_tokens),
        ("evictions", tally.evictions),
        ("cancels", tally.cancels),
        ("losses", tally.losses),
        ("resets", tally.resets),
        ("pauses", tally.pauses),
    ];
    for (what, count) in rich {
        assert!(count >= 100, "only {count} {what} in {tally:?}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    let (one, two) = (simulate(3, 0, 3000, &mut |_| ()), simulate(3, 0, 3000, &mut |_| ()));
    assert_eq!(one, two);
    // A scenario alone is what it is among others.
    let alone = simulate(3, 1, 0, &mut |_| ());
    let mut sums = Vec::new();
    simulate(3, 0, 3000, &mut |report| sums.push(report.tally.tokens));
    assert_eq!(alone.tally.tokens, sums[1] - sums[0]);
}

fn request(index: u64, arrival_micros: u64, priority: i32, max_tokens: u32) -> NewSequence {
    let prompt = (0..10).map(|at| ((index * 31 + at * 7) % 900) as TokenId + 10).collect();
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    NewSequence { arrival_micros, priority, ..NewSequence::new(RequestId(index), prompt, max_tokens, row) }
}

/// A device for two that is offered work for three, all of it more urgent than request 0.
fn crowd(aging_micros: u64) -> Run {
    let options = MockOptions { latency_micros: 0, ..MockOptions::default() };
    let runner = MockRunner::new(options);
    let config = SchedulerConfig {
        policy: Policy::Priority,
        max_num_seqs: 2,
        max_steps: 1,
        aging_micros,
        ..SchedulerConfig::for_capacity(&runner.capacity())
    };
    let mut driver = Driver::new(config, runner).unwrap();
    driver.submit(request(0, 1, 5, 10), None);
    // Four are there before it. The others come every 3.3 ms and take ten steps of 1 ms each, two at a time.
    for index in 1..600 {
        driver.submit(request(index, index.saturating_sub(4) * 3300, 0, 10), None);
    }
    driver.run(&mut |_| ()).unwrap();
    driver.finish().unwrap().0
}

#[test]
fn waiting_long_enough_outweighs_priority() {
    let admitted = |run: &Run| run.timelines[0].admitted_micros.expect("everybody is served in the end");
    // Five levels at 20 ms each: whoever comes after 100 ms is less urgent; the thirty who came before take 170 ms.
    let aged = admitted(&crowd(20_000));
    assert!((100_000..250_000).contains(&aged), "admitted after {aged} us");
    // With aging too slow to matter it waits until the crowd is gone: the measure above can fail.
    let starved = admitted(&crowd(1_000_000_000));
    assert!(starved > 1_900_000, "admitted after {starved} us");
}

#[test]
fn the_earliest_deadline_goes_first_and_priorities_do_not_mix_with_it() {
    let run = |policy| {
        let options = MockOptions::default();
        let runner = MockRunner::new(options);
        let config = SchedulerConfig {
            policy,
            max_num_seqs: 1,
            max_steps: 1,
            ..SchedulerConfig::for_capacity(&runner.capacity())
        };
        let mut driver = Driver::new(config, runner).unwrap();
        // Urgent by priority, urgent by deadline, and neither.
        for (index, (priority, deadline)) in [(9, 900_000), (-5, 800_000), (0, 50_000), (5, 100_000)].iter().enumerate()
        {
            let new = request(index as u64, 0, *priority, 3);
            driver.submit(NewSequence { deadline_micros: Some(*deadline), ..new }, None);
        }
        driver.run(&mut |_| ()).unwrap();
        let (run, _) = driver.finish().unwrap();
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by_key(|number| run.timelines[*number].admitted_micros);
        order
    };
    assert_eq!(run(Policy::Fcfs), [0, 1, 2, 3]);
    assert_eq!(run(Policy::Priority), [1, 2, 3, 0]);
    assert_eq!(run(Policy::Edf), [2, 3, 1, 0]);
}

#[test]
fn phase_split_computes_prompts_alone() {
    let longest_gap = |policy| {
        let options = MockOptions { prefill_micros: 100, latency_micros: 0, ..MockOptions::default() };
        let runner = MockRunner::new(options);
        let config = SchedulerConfig {
            policy,
            max_steps: 1,
            max_in_flight: 1,
            ..SchedulerConfig::for_capacity(&runner.capacity())
        };
        let mut driver = Driver::new(config, runner).unwrap();
        driver.submit(request(0, 0, 0, 20), None);
        driver.submit(request(1, 4000, 0, 20), None);
        driver.run(&mut |_| ()).unwrap();
        let (run, _) = driver.finish().unwrap();
        run.timelines[0].token_micros.windows(2).map(|pair| pair[1] - pair[0]).max()
    };
    // Ten prompt tokens and a step are 2 ms; a step for the others comes before or after, or is the same.
    assert_eq!(longest_gap(Policy::Fcfs), Some(2000));
    assert_eq!(longest_gap(Policy::PhaseSplit), Some(3000));
}
