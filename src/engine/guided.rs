//! Guided requests: grammars are compiled and masks made on threads of their own, while everybody else goes on. A token that the
//! grammar leaves no choice for is taken without asking the model.

use super::guidance::{Guidance, Job, Outlook, Rules};
use super::handle::Command;
use super::thread::{Next, Worker};
use crate::base::{RequestId, SeqId, TokenId};
use crate::error::{Error, Result};
use crate::runner::RunError;
use crate::sampling::guide::{GuideCompiler, TokenGuide};
use crate::sampling::lists::mask_words;
use crate::sampling::{Constraint, SamplingParams};
use crate::sched::FinishReason;
use crate::sched::plan::StepPlan;
use crate::trace::Call;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long a plan waits for masks that are being made: most come within a tenth of it, and a late one joins the next plan.
const MASK_WAIT: Duration = Duration::from_millis(1);

/// All that guided requests need on the engine thread.
pub(super) struct Guides {
    compiler: Option<Arc<dyn GuideCompiler>>,
    commands: mpsc::Sender<Command>,
    /// Compiling may take long, so masks have threads of their own; both start with the first guided request.
    pools: Option<Pools>,
    guided: HashMap<SeqId, Guided>,
    /// Tokens that came since masks were last asked for.
    came: Vec<(SeqId, TokenId)>,
    /// Masks that are being made.
    under_way: usize,
    /// Tokens that the scheduler reports now were appended, not sampled.
    appending: bool,
    mask_words: usize,
}

struct Pools {
    compile: ThreadPool,
    masks: ThreadPool,
}

/// One guided sequence.
struct Guided {
    /// At the mask's maker, or here.
    guide: Option<Box<dyn TokenGuide>>,
    mask: Vec<u32>,
    rules: Arc<Rules>,
    outputs: usize,
}

impl Guides {
    pub(super) fn new(
        compiler: Option<Arc<dyn GuideCompiler>>,
        commands: mpsc::Sender<Command>,
        vocab_size: usize,
    ) -> Self {
        Self {
            compiler,
            commands,
            pools: None,
            guided: HashMap::new(),
            came: Vec::new(),
            under_way: 0,
            appending: false,
            mask_words: mask_words(vocab_size),
        }
    }

    /// A sequence has ended, or never began.
    pub(super) fn forget(&mut self, seq: SeqId) {
        self.guided.remove(&seq);
    }

    /// A sequence reported a token.
    pub(super) fn token(&mut self, seq: SeqId, token: TokenId) {
        if let Some(guided) = self.guided.get_mut(&seq) {
            guided.outputs += 1;
            if !self.appending {
                self.came.push((seq, token));
            }
        }
    }

    /// Writes the masks that `plan` asks for.
    ///
    /// # Errors
    /// One is missing, which is a defect.
    pub(super) fn fill(&self, plan: &mut StepPlan) -> std::result::Result<(), RunError> {
        for row in &plan.masks {
            let mask = self.guided.get(&row.seq).filter(|guided| guided.guide.is_some());
            let mask = mask.ok_or_else(|| RunError::Bug(format!("sequence {} has no mask", row.seq)))?;
            plan.mask_words.extend_from_slice(&mask.mask);
        }
        Ok(())
    }

    fn pools(&mut self) -> Result<&Pools> {
        if self.pools.is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let pool = |name: &'static str, threads: usize| {
                let builder = ThreadPoolBuilder::new().num_threads(threads).thread_name(move |_| name.into());
                builder.build().map_err(|error| Error::bug(format!("threads for grammars cannot be started: {error}")))
            };
            let compile = pool("octavo grammar", (cores / 2).max(1))?;
            self.pools = Some(Pools { compile, masks: pool("octavo masks", cores.saturating_sub(1).max(1))? });
        }
        self.pools.as_ref().ok_or_else(|| Error::bug("threads for grammars vanished"))
    }

    /// Starts to compile the constraint of `request`, whose outputs are `outputs` sequences.
    fn compile(
        &mut self,
        request: RequestId,
        constraint: &Constraint,
        params: &SamplingParams,
        room: usize,
    ) -> Result<()> {
        let compiler = self.compiler.clone().ok_or_else(|| Error::bug("a constraint without a compiler was let in"))?;
        let words = self.mask_words;
        let rules = Arc::new(Rules::new(params, words));
        let (constraint, whitespace, outputs) = (constraint.clone(), params.whitespace, params.n);
        let commands = self.commands.clone();
        self.pools()?.compile.spawn(move || {
            let made = catch_unwind(AssertUnwindSafe(|| {
                let guide = compiler.compile(&constraint, whitespace)?;
                let mut guides: Vec<_> = (1..outputs).map(|_| guide.fork()).collect();
                guides.insert(0, guide);
                let start = |guide| Job { guide, mask: vec![0; words], rules: rules.clone(), room }.run(None);
                Ok((guides.into_iter().map(start).collect(), rules))
            }));
            let made = made.unwrap_or_else(|_| Err(Error::bug("the grammar engine stopped at a defect")));
            // An engine that is gone has ended the request.
            let _ = commands.send(Command::Compiled { request, made });
        });
        Ok(())
    }
}

/// What comes of compiling: guidance for each output, or why there is none.
pub(super) type Compiled = Result<(Vec<Guidance>, Arc<Rules>)>;

impl Worker {
    /// Starts to compile the constraint of a request whose sequences were added and are held.
    pub(super) fn begin_guidance(&mut self, request: RequestId, params: &SamplingParams, room: usize) {
        let Some(constraint) = &params.constraint else { return };
        if let Err(error) = self.guides.compile(request, constraint, params, room) {
            self.fail_request(request, error);
        }
    }

    /// A constraint was compiled, or refused.
    pub(super) fn compiled(&mut self, request: RequestId, made: Compiled) {
        let Some(live) = self.live.get(&request) else { return };
        let seqs: Vec<Option<SeqId>> = live.outputs();
        match made {
            Err(error) => self.fail_request(request, error),
            Ok((guidance, rules)) => {
                for (seq, guidance) in seqs.into_iter().zip(guidance) {
                    // One that fails takes the others of its request with it.
                    let Some(seq) = seq.filter(|seq| self.sequences.contains_key(seq)) else { continue };
                    let guided = Guided { guide: None, mask: Vec::new(), rules: rules.clone(), outputs: 0 };
                    self.guides.guided.insert(seq, guided);
                    self.scheduler.release(seq);
                    self.trace(Call::Release { seq });
                    self.take_guidance(seq, guidance);
                }
            }
        }
    }

    /// Sends the guides of those whose token just came to make the next mask.
    pub(super) fn ask_for_masks(&mut self) {
        let mut came = std::mem::take(&mut self.guides.came);
        for (seq, token) in came.drain(..) {
            let room = self.scheduler.remaining(seq);
            let Some(guided) = self.guides.guided.get_mut(&seq) else { continue };
            let Some(guide) = guided.guide.take() else { continue };
            let job = Job { guide, mask: std::mem::take(&mut guided.mask), rules: guided.rules.clone(), room };
            let commands = self.guides.commands.clone();
            let Some(pools) = &self.guides.pools else { continue };
            self.guides.under_way += 1;
            pools.masks.spawn(move || {
                let guidance = job.run(Some(token));
                // An engine that is gone needs no mask.
                let _ = commands.send(Command::Guided { seq, guidance: Box::new(guidance) });
            });
        }
        self.guides.came = came;
    }

    /// Waits a moment for masks that are being made, and serves commands meanwhile.
    pub(super) fn await_masks(&mut self) -> Next {
        let deadline = Instant::now() + MASK_WAIT;
        while self.guides.under_way > 0 {
            match self.commands.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(command) => {
                    if self.obey(command) == Next::Stop {
                        return Next::Stop;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => break,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Next::Stop,
            }
        }
        Next::GoOn
    }

    /// A mask that was asked for is there.
    pub(super) fn guided(&mut self, seq: SeqId, guidance: Guidance) {
        self.guides.under_way -= 1;
        // Otherwise it was cancelled meanwhile.
        if self.guides.guided.contains_key(&seq) {
            self.take_guidance(seq, guidance);
        }
    }

    fn take_guidance(&mut self, seq: SeqId, guidance: Guidance) {
        let Guidance { guide, mask, forced, outlook } = guidance;
        let Some(guided) = self.guides.guided.get_mut(&seq) else { return };
        (guided.guide, guided.mask) = (Some(guide), mask);
        let at = guided.outputs + forced.len();
        if !forced.is_empty() {
            self.guides.appending = true;
            self.scheduler.append(seq, &forced, &mut self.events);
            self.trace(Call::Append { seq, tokens: &forced });
            self.emit();
            self.guides.appending = false;
            self.record_state();
        }
        // What was appended may have ended it.
        let Some(&(request, _)) = self.sequences.get(&seq) else { return };
        match outlook {
            Ok(Outlook::Open) => {
                self.scheduler.set_ready(seq);
                self.trace(Call::Ready { seq });
            }
            Ok(Outlook::Done) => self.end_by_host(seq, FinishReason::Stop),
            Err(error) => self.fail_request(request, error.context(format!("output token {at}"))),
        }
    }

    /// Ends a request with an error; nothing else is touched.
    pub(super) fn fail_request(&mut self, request: RequestId, error: Error) {
        let Some(live) = self.live.remove(&request) else { return };
        for seq in live.open() {
            self.sequences.remove(&seq);
            self.guides.forget(seq);
            self.scheduler.finish(seq);
            self.trace(Call::Finish { seq });
        }
        self.shared.metrics().failed += 1;
        live.fail(error);
        self.record_state();
    }
}
