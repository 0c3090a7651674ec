//! Runners whose results wait for the test, or are changed by it.

use octavo::base::SeqId;
use octavo::runner::mock::{MockOptions, MockRunner};
use octavo::runner::{Capacity, ModelRunner, Prepared, RunError, StepResult, Wait};
use octavo::sampling::SamplingRow;
use octavo::sched::plan::StepPlan;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// A runner whose results come only once the gate is open.
pub struct GatedRunner {
    inner: MockRunner,
    state: Arc<(Mutex<bool>, Condvar)>,
    submitted: mpsc::Sender<()>,
}

pub struct Gate {
    state: Arc<(Mutex<bool>, Condvar)>,
    submitted: mpsc::Receiver<()>,
}

impl GatedRunner {
    pub fn new(mock: &MockOptions) -> (Gate, Self) {
        let state: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (sender, submitted) = mpsc::channel();
        let runner = Self { inner: MockRunner::new(mock.clone()), state: state.clone(), submitted: sender };
        (Gate { state, submitted }, runner)
    }
}

impl Gate {
    pub fn open(&self) {
        *self.state.0.lock().unwrap() = true;
        self.state.1.notify_all();
    }

    /// Nothing must be under way.
    pub fn close(&self) {
        *self.state.0.lock().unwrap() = false;
        while self.submitted.try_recv().is_ok() {}
    }

    pub fn wait_for_submission(&self) {
        self.submitted.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

impl ModelRunner for GatedRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        // The test may not be interested.
        let _ = self.submitted.send(());
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        let limit = match wait {
            Wait::No => Duration::ZERO,
            Wait::AtMost(limit) => limit,
        };
        let open = self.state.0.lock().unwrap();
        let (open, _) = self.state.1.wait_timeout_while(open, limit, |open| !*open).unwrap();
        if *open { self.inner.poll(wait, result) } else { Ok(false) }
    }
}

/// Sampling rows of all sequences so far.
pub type Rows = HashMap<SeqId, SamplingRow>;

/// A runner whose results pass through the test's hands.
pub struct EditedRunner<F> {
    inner: MockRunner,
    rows: Rows,
    edit: F,
}

impl<F: FnMut(&Rows, &mut StepResult) + Send> EditedRunner<F> {
    pub fn new(mock: &MockOptions, edit: F) -> Self {
        Self { inner: MockRunner::new(mock.clone()), rows: Rows::new(), edit }
    }
}

impl<F: FnMut(&Rows, &mut StepResult) + Send> ModelRunner for EditedRunner<F> {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        self.rows.extend(plan.new_slots.iter().map(|init| (init.seq, init.sampling)));
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        let came = self.inner.poll(wait, result)?;
        if came {
            (self.edit)(&self.rows, result);
        }
        Ok(came)
    }
}

/// What a [`PreparingRunner`] was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Prepare,
    Submit,
}

/// A runner with pieces to prepare, each of which takes until the test lets it pass.
pub struct PreparingRunner {
    inner: MockRunner,
    prepared: Prepared,
    asked: mpsc::Sender<Asked>,
    passes: mpsc::Receiver<()>,
}

impl PreparingRunner {
    pub fn new(mock: &MockOptions, pieces: u32) -> (mpsc::Receiver<Asked>, mpsc::Sender<()>, Self) {
        let (asked, seen) = mpsc::channel();
        let (pass, passes) = mpsc::channel();
        let prepared = Prepared { done: 0, total: pieces };
        (seen, pass, Self { inner: MockRunner::new(mock.clone()), prepared, asked, passes })
    }
}

impl ModelRunner for PreparingRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn prepare(&mut self) -> Result<Prepared, RunError> {
        assert!(!self.prepared.is_complete(), "asked again after the end");
        // The test may be over.
        let _ = self.asked.send(Asked::Prepare);
        let _ = self.passes.recv();
        self.prepared.done += 1;
        Ok(self.prepared)
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), RunError> {
        let _ = self.asked.send(Asked::Submit);
        self.inner.submit(plan)
    }

    fn poll(&mut self, wait: Wait, result: &mut StepResult) -> Result<bool, RunError> {
        self.inner.poll(wait, result)
    }
}
