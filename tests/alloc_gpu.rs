//! A decode step of a warm runner: what it allocates on the host, and that it creates nothing on the device.
//!
//! wgpu allocates for every command buffer, so the whole path cannot be free of it: how much is printed. What is ours is what
//! was asked for outside of wgpu, as the call stack of each allocation tells: that must be nothing.

#[path = "common/golden.rs"]
mod golden;

use octavo::base::{RequestId, TokenId};
use octavo::config::{EngineConfig, EngineOptions};
use octavo::gpu::device::ShaderMode;
use octavo::gpu::{Gpu, list_adapters};
use octavo::model::files::ModelFiles;
use octavo::runner::wgpu::WgpuRunner;
use octavo::runner::{ModelRunner, StepResult, Wait};
use octavo::sampling::{SamplingParams, SamplingRow};
use octavo::sched::plan::StepPlan;
use octavo::sched::{NewSequence, Scheduler, SchedulerConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::time::Duration;

struct Counting;

thread_local! {
    /// Allocations of this thread; drivers have threads of their own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Whether call stacks are collected. Off while one is.
    static COLLECTING: Cell<bool> = const { Cell::new(false) };
    static STACKS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    if COLLECTING.try_with(|on| on.replace(false)) == Ok(true) {
        let stack = Backtrace::force_capture().to_string();
        STACKS.with_borrow_mut(|stacks| stacks.push(stack));
        COLLECTING.set(true);
    }
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Whether octavo asked for it, and not wgpu on its behalf.
fn is_ours(stack: &str) -> bool {
    let first = |name: &str| stack.find(name).unwrap_or(usize::MAX);
    // Innermost frames come first. Our own module `runner::wgpu` is not the crate.
    first("octavo::") < first(" wgpu::").min(first(" wgpu_core::")).min(first("<wgpu")).min(first(" wgpu_hal::"))
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const STEPS: u64 = 100;

/// Allocations of a decode step in submitting and in polling, and the call stacks of those that are ours.
fn measure(gpu: Gpu) -> ([f64; 2], Vec<String>) {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options = EngineOptions { max_num_seqs: 4, max_num_batched_tokens: 64, ..EngineOptions::default() };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    let mut runner = WgpuRunner::on_device(gpu, &files, &config, &mut |_| {}).unwrap();
    let capacity = runner.capacity();
    let config = SchedulerConfig { max_steps: 1, max_in_flight: 1, ..SchedulerConfig::for_capacity(&capacity) };
    let mut scheduler = Scheduler::new(config, capacity).unwrap();
    let (mut plan, mut result, mut events) = (StepPlan::default(), StepResult::default(), Vec::new());
    let row = SamplingRow::new(&SamplingParams::default(), 0, &[]);
    for index in 0..3u64 {
        let prompt = (0..20 + index).map(|at| ((index * 7919 + at * 104_729) % 500) as TokenId).collect();
        scheduler.add(NewSequence::new(RequestId(index), prompt, 240, row), &mut events).unwrap();
    }
    let mut counts = [0.0; 2];
    let mut step = |runner: &mut WgpuRunner, counts: &mut [f64; 2]| {
        events.clear();
        assert!(scheduler.schedule(&mut plan, &mut events));
        let planned = allocations();
        runner.submit(&plan).unwrap();
        let submitted = allocations();
        while !runner.poll(Wait::AtMost(Duration::from_secs(60)), &mut result).unwrap() {}
        counts[0] += (submitted - planned) as f64 / STEPS as f64;
        counts[1] += (allocations() - submitted) as f64 / STEPS as f64;
        scheduler.commit(&result, &mut events);
    };
    // Bundles of one and of two chunks of context, and memory that grows to its size.
    for _ in 0..100 {
        step(&mut runner, &mut [0.0; 2]);
    }
    let before = runner.counters();
    for _ in 0..STEPS {
        step(&mut runner, &mut counts);
    }
    // One block boundary is among them.
    COLLECTING.set(true);
    for _ in 0..17 {
        step(&mut runner, &mut [0.0; 2]);
    }
    COLLECTING.set(false);
    let after = runner.counters();
    assert_eq!((before.buffers, before.bind_groups), (after.buffers, after.bind_groups));
    let stacks = STACKS.take();
    assert!(
        stacks.iter().any(|stack| stack.contains("octavo::")),
        "call stacks have no names; build with debug symbols"
    );
    (counts, stacks.into_iter().filter(|stack| is_ours(stack)).collect())
}

/// One test in this program: others would collect stacks at the same time.
#[test]
fn steps_of_a_warm_runner_allocate_nothing_of_ours() {
    // Debug builds of wgpu capture call stacks of their own where backtraces are wanted, and allocate while they hold the lock that
    // ours need. SAFETY: no other thread of this program runs yet that reads the environment.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    let found = list_adapters().unwrap().remove(0);
    let profile = found.profile.clone();
    for (name, gpu) in [
        ("the first adapter", Gpu::open_adapter(found, ShaderMode::Trusted).unwrap()),
        ("the device that does nothing", Gpu::noop(profile)),
    ] {
        let ([submit, poll], ours) = measure(gpu);
        println!("{name}: wgpu allocates {submit:.1} times a step in submitting, {poll:.1} times in polling");
        assert!(ours.is_empty(), "{name}: {} allocations are ours, the first here:\n{}", ours.len(), ours[0]);
    }
}
