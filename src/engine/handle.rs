//! The way in: turns requests into commands for the engine thread.

use super::guidance::Guidance;
use super::guided::Compiled;
use super::request::{Prompt, Request, Scoring};
use super::settings::EngineSettings;
use super::stream::{TokenEvent, TokenStream};
use super::vocabulary::{Prepared, Vocabulary};
use crate::base::{RequestId, SeqId, TokenId};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::runner::Capacity;
use crate::sampling::SamplingParams;
use crate::sched::Pause;
use crate::text::Tokenizer;
use futures::channel::mpsc as stream_channel;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Submits requests to an engine. Clones share it; any thread may use one.
#[derive(Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    vocabulary: Arc<Vocabulary>,
    /// Whether constraints can be compiled.
    guided: bool,
    max_model_len: usize,
    max_waiting: usize,
}

/// What the handles and the thread both see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Why the engine no longer runs.
    stopped: Mutex<Option<Error>>,
    metrics: Mutex<Metrics>,
    waiting: Arc<AtomicUsize>,
    draining: AtomicBool,
    next_request: AtomicU64,
    seeds: RandomState,
}

/// Longer waits are as good as for ever, and an `Instant` must hold their end.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1 << 30);

/// What the engine thread is told.
pub(super) enum Command {
    Add(Box<Submission>),
    Cancel(RequestId),
    CancelAll,
    Pause(Pause),
    /// Ends a pause and all drains.
    Resume,
    ResetPrefixCache {
        preempt: bool,
        done: mpsc::Sender<Result<()>>,
    },
    /// Answered with the number of requests that the deadline cut off.
    Drain {
        deadline: Instant,
        done: mpsc::Sender<usize>,
    },
    /// The constraint of a request was compiled, or refused.
    Compiled {
        request: RequestId,
        made: Compiled,
    },
    /// A mask was made.
    Guided {
        seq: SeqId,
        guidance: Box<Guidance>,
    },
    ShutDown,
}

/// A checked request.
pub(super) struct Submission {
    pub request: RequestId,
    pub prompt: Arc<[TokenId]>,
    pub params: SamplingParams,
    /// What `params` mean for the model.
    pub prepared: Prepared,
    pub seed: u64,
    pub cache_salt: Option<String>,
    pub scoring: Scoring,
    pub priority: i32,
    pub deadline: Option<Instant>,
    pub events: stream_channel::UnboundedSender<Result<TokenEvent>>,
    pub tokenizer: Option<Tokenizer>,
    pub arrived: Instant,
    pub place: QueuePlace,
}

/// Places in the bounded queue, one for each output; free again when dropped.
pub(super) struct QueuePlace {
    waiting: Arc<AtomicUsize>,
    places: usize,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.places, Ordering::Relaxed);
    }
}

/// Ends one request from outside.
#[derive(Clone)]
pub(super) struct Canceller {
    request: RequestId,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

impl EngineHandle {
    pub(super) fn new(
        tokenizer: Option<Tokenizer>,
        settings: &EngineSettings,
        capacity: &Capacity,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let handle = Self {
            commands,
            shared: Arc::default(),
            vocabulary: Arc::new(Vocabulary::new(tokenizer, settings, capacity)),
            guided: settings.guides.is_some(),
            max_model_len: settings.scheduler.max_model_len,
            max_waiting: settings.max_waiting,
        };
        (handle, receiver)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The way in for whoever works for the engine thread.
    pub(super) fn commands(&self) -> mpsc::Sender<Command> {
        self.commands.clone()
    }

    pub(super) fn shut_down(&self) {
        // A thread that is already gone needs no telling.
        let _ = self.commands.send(Command::ShutDown);
    }

    /// Queues a request and returns its events. Never blocks on the device.
    ///
    /// # Errors
    /// Parameters out of range or beyond the vocabulary, a text that cannot be encoded, a full queue ([`ErrorKind::Busy`]), or an
    /// engine that stopped. What only the engine thread can tell (a prompt that is empty, too long or outside the vocabulary)
    /// comes as the stream's first event.
    pub fn generate(&self, request: Request) -> Result<TokenStream> {
        let Request { prompt, params, cache_salt, scoring, priority, deadline } = request;
        params.validate()?;
        if scoring != Scoring::Off && params.n > 1 {
            return Err(Error::config(format!(
                "n is {}, but a request that only scores its prompt has no outputs",
                params.n
            )));
        }
        let arrived = Instant::now();
        if let Some(late) = deadline.and_then(|deadline| arrived.checked_duration_since(deadline)) {
            return Err(Error::config(format!(
                "the deadline was {} ms ago; give one in the future, or none",
                late.as_millis()
            )));
        }
        if self.tokenizer().is_none() && !params.stop.is_empty() {
            return Err(Error::config("stop texts need a tokenizer, which this model lacks; use stop_token_ids"));
        }
        if let Some(constraint) = params.constraint.as_ref().filter(|_| !self.guided) {
            return Err(Error::config(format!(
                "{} constrains the output, which this engine cannot do: build octavo with the feature `structured`, and use a model \
                 with a tokenizer",
                constraint.name()
            )));
        }
        let prepared = self.vocabulary.prepare(&params)?;
        // Taken first: whoever tries again and again while the queue is full shall not encode the text each time.
        let place = self.take_place(params.n as usize)?;
        let mut prompt = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => self.encode(&text)?,
        };
        if let Some(most) = params.truncate_prompt_tokens {
            prompt.drain(..prompt.len().saturating_sub(most as usize));
        }
        let prompt: Arc<[TokenId]> = prompt.into();
        let request = RequestId(self.shared.next_request.fetch_add(1, Ordering::Relaxed));
        let seed = params.seed.unwrap_or_else(|| self.shared.seeds.hash_one(request.0));
        let (events, receiver) = stream_channel::unbounded();
        let submission = Submission {
            request,
            prompt: prompt.clone(),
            params,
            prepared,
            seed,
            cache_salt,
            scoring,
            priority,
            deadline,
            events,
            tokenizer: self.tokenizer().cloned(),
            arrived,
            place,
        };
        let canceller = Canceller { request, commands: self.commands.clone(), shared: self.shared.clone() };
        match self.commands.send(Command::Add(Box::new(submission))) {
            Ok(()) => Ok(TokenStream { events: receiver, canceller, prompt, over: false }),
            Err(_) => Err(self.shared.stop_error()),
        }
    }

    /// Ends every live request; their streams end with the reason `cancelled`.
    pub fn cancel_all(&self) {
        // A thread that is gone has ended them already.
        let _ = self.commands.send(Command::CancelAll);
    }

    /// Stops admitting requests, or stops submitting anything at all; requests are still accepted and wait.
    /// [`resume`](Self::resume) ends it.
    pub fn pause(&self, pause: Pause) {
        // A thread that is gone submits nothing.
        let _ = self.commands.send(Command::Pause(pause));
    }

    /// Ends a [pause](Self::pause), and [drains](Self::drain) before their time: whoever waits for one hears that nobody was
    /// cancelled.
    pub fn resume(&self) {
        self.shared.draining.store(false, Ordering::Relaxed);
        // A thread that is gone has nothing to resume.
        let _ = self.commands.send(Command::Resume);
    }

    /// Refuses new requests and waits until those that are here have ended; after `limit` it cancels the rest. Returns how
    /// many those were. The engine stays up, and [`resume`](Self::resume) lets requests in again.
    ///
    /// # Errors
    /// The engine stopped meanwhile.
    pub fn drain(&self, limit: Duration) -> Result<usize> {
        self.shared.draining.store(true, Ordering::Relaxed);
        let (done, answer) = mpsc::channel();
        let command = Command::Drain { deadline: Instant::now() + limit.min(LONGEST_WAIT), done };
        self.commands.send(command).map_err(|_| self.shared.stop_error())?;
        answer.recv().map_err(|_| self.shared.stop_error())
    }

    /// Forgets all cached prefixes, on the device and the host. With `preempt`, requests that run compute their KV again.
    ///
    /// # Errors
    /// Requests run and `preempt` is false ([`ErrorKind::Busy`]), or the engine stopped.
    pub fn reset_prefix_cache(&self, preempt: bool) -> Result<()> {
        let (done, answer) = mpsc::channel();
        let command = Command::ResetPrefixCache { preempt, done };
        self.commands.send(command).map_err(|_| self.shared.stop_error())?;
        answer.recv().unwrap_or_else(|_| Err(self.shared.stop_error()))
    }

    /// Token ids of a text prompt.
    ///
    /// # Errors
    /// No tokenizer, or text that it cannot express.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        match self.tokenizer() {
            Some(tokenizer) => tokenizer.encode(text, true),
            None => Err(Error::config("this model came without a tokenizer; give the prompt as token ids")),
        }
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.vocabulary.tokenizer()
    }

    /// Longest sequence, prompt and output together.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// Figures since the start.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.shared.metrics().snapshot()
    }

    /// So many places in the queue. An empty one has room for any request.
    fn take_place(&self, places: usize) -> Result<QueuePlace> {
        if let Some(error) = self.shared.stopped() {
            return Err(error);
        }
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Busy, "the engine finishes what it has and takes no new requests"));
        }
        let limit = self.max_waiting;
        let waiting = &self.shared.waiting;
        match waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count == 0 || count + places <= limit).then_some(count + places)
        }) {
            Ok(_) => Ok(QueuePlace { waiting: waiting.clone(), places }),
            Err(count) => Err(Error::new(
                ErrorKind::Busy,
                format!("{count} outputs are waited for already, and max_waiting is {limit}; try again later"),
            )),
        }
    }
}

impl Shared {
    pub(super) fn metrics(&self) -> MutexGuard<'_, Metrics> {
        // Counters are whole after each statement, so a panic elsewhere leaves nothing half-written.
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records why the engine ended; the first reason stays.
    pub(super) fn stop(&self, error: Error) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn stopped(&self) -> Option<Error> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stop_error(&self) -> Error {
        self.stopped().unwrap_or_else(|| Error::new(ErrorKind::Cancelled, "the engine was shut down"))
    }
}

impl Canceller {
    pub(super) fn cancel(&self) {
        // A thread that is gone has ended the request already.
        let _ = self.commands.send(Command::Cancel(self.request));
    }

    pub(super) fn stop_error(&self) -> Error {
        self.shared.stop_error()
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Canceller({})", self.request)
    }
}
