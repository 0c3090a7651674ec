//! What the engine thread is told to do: take requests in, end them, pause, drain, forget cached prefixes.

use super::handle::{Command, Submission};
use super::live::Live;
use super::request::Scoring;
use super::thread::{Next, Worker};
use crate::base::{RequestId, SeqId};
use crate::error::Result;
use crate::sched::{FinishReason, NewSequence, Pause};
use crate::trace::Call;
use std::sync::mpsc;
use std::time::Instant;

/// A drain under way.
pub(super) struct Drain {
    deadline: Instant,
    done: mpsc::Sender<usize>,
}

impl Worker {
    /// Takes what arrived; blocks while there is nothing else to do.
    pub(super) fn drain_commands(&mut self) -> Next {
        loop {
            self.finish_drain();
            let idle = (!self.scheduler.has_work() || self.scheduler.awaits_caller()) && !self.may_prepare();
            let next_deadline = self.draining.iter().map(|drain| drain.deadline).min();
            let command = match (idle, next_deadline) {
                (false, _) => self.commands.try_recv().map_err(|error| error == mpsc::TryRecvError::Disconnected),
                (true, None) => self.commands.recv().map_err(|_| true),
                (true, Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.commands.recv_timeout(left).map_err(|error| error == mpsc::RecvTimeoutError::Disconnected)
                }
            };
            match command {
                Ok(command) => {
                    if self.obey(command) == Next::Stop {
                        return Next::Stop;
                    }
                }
                Err(gone) if gone => return Next::Stop,
                // Nothing there; if it was a drain's deadline that passed, the next round sees to it.
                Err(_) if idle => {}
                Err(_) => return Next::GoOn,
            }
        }
    }

    /// Serves commands, and nothing else, until `deadline`.
    pub(super) fn serve_commands_until(&mut self, deadline: Instant) -> Next {
        loop {
            match self.commands.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(command) => {
                    if self.obey(command) == Next::Stop {
                        return Next::Stop;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Next::GoOn,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Next::Stop,
            }
        }
    }

    pub(super) fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Add(submission) => self.add(*submission),
            Command::Cancel(request) => self.cancel(request),
            Command::CancelAll => self.cancel_all(),
            Command::Pause(pause) => self.pause(pause),
            Command::Resume => {
                self.pause(Pause::None);
                self.answer_drains(0);
            }
            Command::ResetPrefixCache { preempt, done } => {
                let outcome = self.reset(preempt);
                // Whoever asked may have lost interest.
                let _ = done.send(outcome);
            }
            Command::Drain { deadline, done } => self.draining.push(Drain { deadline, done }),
            Command::Compiled { request, made } => self.compiled(request, made),
            Command::Guided { seq, guidance } => self.guided(seq, *guidance),
            Command::ShutDown => return Next::Stop,
        }
        Next::GoOn
    }

    fn pause(&mut self, pause: Pause) {
        self.scheduler.set_pause(pause);
        self.trace(Call::Pause(pause));
    }

    fn reset(&mut self, preempt: bool) -> Result<()> {
        self.scheduler.reset_prefix_cache(preempt, &mut self.events)?;
        self.trace(Call::Reset { preempt });
        self.emit();
        self.record_state();
        Ok(())
    }

    fn cancel(&mut self, request: RequestId) {
        let Some(live) = self.live.get(&request) else { return };
        let open: Vec<SeqId> = live.open().collect();
        open.into_iter().for_each(|seq| self.end_by_host(seq, FinishReason::Cancelled));
    }

    fn cancel_all(&mut self) {
        let all: Vec<RequestId> = self.live.keys().copied().collect();
        all.into_iter().for_each(|request| self.cancel(request));
    }

    /// Answers drains once nothing is left, or cancels what is left once the time of one of them is over.
    fn finish_drain(&mut self) {
        let (left, now) = (self.live.len(), Instant::now());
        if !self.draining.is_empty() && (left == 0 || self.draining.iter().any(|drain| now >= drain.deadline)) {
            self.cancel_all();
            self.answer_drains(left);
        }
    }

    fn answer_drains(&mut self, cancelled: usize) {
        for drain in self.draining.drain(..) {
            // Whoever asked may have lost interest.
            let _ = drain.done.send(cancelled);
        }
    }

    fn add(&mut self, submission: Submission) {
        let (request, outputs, seed) = (submission.request, submission.params.n, submission.seed);
        let template = self.sequence(&submission);
        let constrained = submission.params.constraint.is_some().then(|| submission.params.clone());
        let mut live = Live::new(submission);
        let mut first = None;
        for index in 0..outputs {
            let seed = seed.wrapping_add(u64::from(index));
            let new = NewSequence {
                sampling: template.sampling.with_seed(seed),
                // The prompt is the same for all of them: it is scored once.
                score: template.score && index == 0,
                fork_of: first,
                ..template.clone()
            };
            let traced = self.tracer.is_some().then(|| new.clone());
            match self.scheduler.add(new, &mut self.events) {
                Ok(seq) => {
                    if let Some(new) = &traced {
                        self.trace(Call::Add { new, seq });
                    }
                    first.get_or_insert(seq);
                    self.sequences.insert(seq, (request, index as usize));
                    live.add_output(seq, seed);
                }
                // What refuses one output refuses the first, so no other one is left behind.
                Err(error) => {
                    self.shared.metrics().refused += 1;
                    return live.fail(error);
                }
            }
        }
        self.shared.metrics().requests += 1;
        self.live.insert(request, live);
        if let Some(params) = constrained {
            self.begin_guidance(request, &params, template.max_tokens as usize);
        }
        self.emit();
        self.record_state();
    }

    fn sequence(&self, submission: &Submission) -> NewSequence {
        let (params, prepared) = (&submission.params, &submission.prepared);
        let only_score = submission.scoring == Scoring::Prompt;
        let room = self.settings.scheduler.max_model_len.saturating_sub(submission.prompt.len()).max(1);
        let max_tokens = params.max_tokens.unwrap_or(u32::try_from(room).unwrap_or(u32::MAX));
        let micros = |time: Instant| time.saturating_duration_since(self.clock).as_micros() as u64;
        let (prompt, max_tokens) = (submission.prompt.to_vec(), if only_score { 0 } else { max_tokens });
        NewSequence {
            lists: prepared.lists.clone(),
            stop_tokens: prepared.stop_tokens.clone(),
            cache_salt: submission.cache_salt.clone(),
            score: only_score || params.prompt_logprobs.is_some(),
            arrival_micros: micros(submission.arrived),
            priority: submission.priority,
            deadline_micros: submission.deadline.map(micros),
            // Its grammar is compiled first.
            held: params.constraint.is_some(),
            ..NewSequence::new(submission.request, prompt, max_tokens, prepared.row)
        }
    }

    /// Ends a sequence that the scheduler would go on with.
    pub(super) fn end_by_host(&mut self, seq: SeqId, reason: FinishReason) {
        self.scheduler.finish(seq);
        self.trace(Call::Finish { seq });
        self.record_state();
        self.end(seq, reason);
    }

    /// Tells the trace of a call that was just made.
    pub(super) fn trace(&mut self, call: Call<'_>) {
        if let Some(tracer) = &mut self.tracer {
            tracer.call(self.clock.elapsed(), call);
        }
    }
}
