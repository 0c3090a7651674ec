//! Planning a step and taking its result allocates nothing once everything runs.

use octavo::base::{RequestId, TokenId};
use octavo::runner::{Capacity, ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use octavo::sim::EchoRunner;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const RUNNING: usize = 256;
const STEPS: u32 = 200;

/// One test in this program: others would allocate at the same time.
#[test]
fn steady_steps_allocate_nothing() {
    let capacity = Capacity {
        block_count: 16_384,
        slot_count: RUNNING as u32,
        max_batched_tokens: 4096,
        max_model_len: 1024,
        max_steps: 1,
        vocab_size: 32_000,
        host_blocks: 0,
        window: None,
        logprob_entries: 1 << 16,
    };
    let mut runner = EchoRunner::new(capacity);
    let mut scheduler = Scheduler::new(SchedulerConfig::for_capacity(&capacity), capacity).unwrap();
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    // As many again wait: a queue is no excuse.
    for index in 0..2 * RUNNING {
        // Lengths differ, so that blocks are opened and named in every step.
        let prompt = (0..20 + index % 16).map(|at| ((index * 7919 + at * 104_729) % 32_000) as TokenId).collect();
        scheduler.add(NewSequence::new(RequestId(index as u64), prompt, 900, row), &mut events).unwrap();
    }
    let mut step = |events: &mut Vec<_>| {
        events.clear();
        assert!(scheduler.schedule(&mut plan, events));
        runner.submit(&plan).unwrap();
        assert!(runner.poll(Wait::No, &mut result).unwrap());
        scheduler.commit(&result, events);
        plan.decode.len()
    };
    for _ in 0..64 {
        step(&mut events);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..STEPS {
        assert_eq!(step(&mut events), RUNNING);
    }
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations in {STEPS} steps of {RUNNING} sequences");
}
