//! Making room by recomputation: the sequence admitted last gives up its KV, keeps its tokens and returns to the
//! front of the queue.

use super::scheduler::release_table;
use super::sequence::SeqState;
use super::{Estimates, PreemptReason, Released, SchedEvent, Scheduler};
use crate::base::SeqId;

impl Scheduler {
    /// Preempts the tail of the running list and says who it was.
    ///
    /// Rows are planned from the head and the victim is never before the row that asks, so it has no row in the plan
    /// under way that would have to be taken back.
    pub(super) fn preempt_tail(&mut self, events: &mut Vec<SchedEvent>) -> SeqId {
        let id = self.running.pop().expect("the row that asks is running itself");
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        let slot = sequence.slot().expect("running sequences have a slot");
        release_table(&mut self.pool, sequence);
        sequence.state = SeqState::Waiting;
        sequence.computed = 0;
        sequence.published = 0;
        sequence.incarnation += 1;
        self.close_slot(slot);
        self.waiting.push_front(id);
        self.totals.preemptions += 1;
        let (reason, how) = (PreemptReason::NoBlock { wanted_by: id }, Released::Dropped);
        events.push(SchedEvent::Preempted { seq: id, reason, how, tokens: 0, estimates: Estimates::default() });
        id
    }
}
