//! Runs requests: one thread that owns scheduler and runner, handles that submit to it, streams that it fills.
//!
//! ```text
//! EngineHandle --commands--> thread: drain -> schedule -> submit -> poll -> commit -> emit --events--> TokenStream
//! ```
//!
//! Invariants: only the engine thread touches the scheduler and the runner. Every accepted request ends its stream with
//! exactly one [`TokenEvent::Finished`] or one error, whatever happens to the thread. A dropped stream frees everything
//! that its request held. Losing the device is an ordinary event (`recover.rs`). Nothing here knows what a GPU is.

mod guidance;
mod guided;
mod handle;
#[cfg(feature = "hub")]
mod hub;
mod live;
mod locate;
mod logprob;
mod obey;
mod output;
mod prepare;
mod recover;
mod request;
mod settings;
mod stream;
mod thread;
mod vocabulary;

pub use handle::EngineHandle;
pub use locate::locate_model;
pub use logprob::Logprob;
pub use request::{Prompt, Request, Scoring};
pub use settings::{EngineSettings, RebuildPolicy, RunnerFactory};
pub use stream::{
    Alternative, AlternativeOutput, Finished, OutputBuilder, RequestOutput, Timings, TokenEvent, TokenStream, Usage,
};

use crate::error::{Error, Result};
use crate::runner::ModelRunner;
use crate::sched::Scheduler;
use crate::text::Tokenizer;
use crate::trace::Tracer;
use std::sync::mpsc;
use std::time::Duration;

/// Owns the engine thread. Dropping it ends all streams with an error of kind
/// [`Cancelled`](crate::error::ErrorKind::Cancelled), lets what is on the device finish within a deadline, and frees
/// the device.
pub struct Engine {
    handle: EngineHandle,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Closed by the thread when it has let go of everything.
    ended: mpsc::Receiver<()>,
    deadline: Duration,
}

impl Engine {
    /// Starts the thread on `runner`. Without a `tokenizer`, prompts must be token ids and outputs have no text.
    /// `rebuild` makes a new runner after the device was lost; without it, that ends the engine.
    ///
    /// # Errors
    /// Settings that contradict each other or the runner's capacity.
    pub fn start(
        runner: Box<dyn ModelRunner>,
        rebuild: Option<RunnerFactory>,
        tokenizer: Option<Tokenizer>,
        settings: EngineSettings,
    ) -> Result<Self> {
        let capacity = runner.capacity();
        let scheduler = Scheduler::new(settings.scheduler.clone(), capacity)?;
        let deadline = settings.shutdown_deadline;
        let (handle, commands) = EngineHandle::new(tokenizer, &settings, &capacity);
        let trace = settings.trace.as_deref();
        let tracer = trace.map(|path| Tracer::create(path, &settings.scheduler, &capacity)).transpose()?;
        let shared = handle.shared().clone();
        let guides = guided::Guides::new(settings.guides.clone(), handle.commands(), capacity.vocab_size as usize);
        let worker =
            thread::Worker::new(shared, commands, scheduler, runner, rebuild, settings, capacity, tracer, guides);
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("octavo-engine".into())
            .spawn(move || {
                worker.run();
                drop(end);
            })
            .map_err(|error| Error::memory(format!("the system gave no thread for the engine: {error}")))?;
        Ok(Self { handle, thread: Some(thread), ended, deadline })
    }

    /// Ends everything in order: takes no new requests, lets those that are here come to their end within `limit`, cancels
    /// the rest, frees the device. Returns how many were cancelled.
    pub fn shut_down(self, limit: Duration) -> usize {
        // An engine that has stopped by itself has ended its requests.
        self.handle.drain(limit).unwrap_or(0)
    }

    /// What requests are submitted to; clone it freely.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }
}

impl std::ops::Deref for Engine {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.handle
    }
}

/// Time beyond the deadline for freeing the device.
const GRACE: Duration = Duration::from_secs(5);

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle.shut_down();
        let Some(thread) = self.thread.take() else { return };
        // The thread never sends: the wait ends when it drops its end of the channel.
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(self.deadline.saturating_add(GRACE)) {
            log::warn!("the engine thread did not end in time and is left behind; the driver may hang");
            return;
        }
        if thread.join().is_err() {
            log::error!("the engine thread panicked while it shut down");
        }
    }
}
