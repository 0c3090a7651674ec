//! The mock's memory: slots, block tables and KV cells on the device, and blocks of cells on the host.

mod rows;

use super::rules::Rules;
use super::{Context, MockOptions, RunError, StepResult};
use crate::base::{BLOCK_TOKENS, BlockId, Epoch, SeqId, SlotId, TokenId};
use crate::runner::Capacity;
use crate::runner::move_rules::MoveRules;
use crate::sched::plan::{StepPlan, TableUpdate};

/// KV of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    position: usize,
    token: TokenId,
    /// Hash of all tokens up to and with this one.
    context: Context,
}

/// Why a row yields no more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    Token,
    Limit,
    NoToken,
}

#[derive(Clone, Debug)]
struct Slot {
    owner: SeqId,
    /// Blocks, and the submission that entered each.
    table: Vec<Option<(BlockId, Epoch)>>,
    rules: Rules,
    limit: usize,
    /// Positions with KV; unknown until the first chunk says where it starts.
    filled: Option<usize>,
    /// Hash of the tokens at those positions, kept apart from the cells: what a read must find.
    context: Option<Context>,
    /// Input of the next step.
    token: Option<TokenId>,
    halt: Option<Halt>,
}

#[derive(Debug)]
pub(super) struct Memory {
    slots: Vec<Option<Slot>>,
    cells: Vec<Option<Cell>>,
    /// As `cells`, for the host's blocks.
    host: Vec<Option<Cell>>,
    rules: MoveRules,
    capacity: Capacity,
    start: Context,
    /// Entries of log-probabilities in the submission under way.
    entries: u32,
}

type Run<T> = Result<T, RunError>;

fn bug<T>(what: String) -> Run<T> {
    Err(RunError::Bug(what))
}

/// The first position that the row at `position`, or any later one, reads.
fn visible_from(capacity: &Capacity, position: usize) -> usize {
    capacity.window.map_or(0, |window| (position + 1).saturating_sub(window as usize))
}

impl Memory {
    pub fn new(options: &MockOptions) -> Self {
        let capacity = options.capacity;
        Self {
            slots: vec![None; capacity.slot_count as usize],
            cells: vec![None; capacity.block_count as usize * BLOCK_TOKENS],
            host: vec![None; capacity.host_blocks as usize * BLOCK_TOKENS],
            rules: MoveRules::new(&capacity),
            capacity,
            start: Context::start(options.seed),
            entries: 0,
        }
    }

    /// Carries out a whole plan, whose limits have been checked.
    pub fn run(&mut self, plan: &StepPlan, options: &MockOptions, result: &mut StepResult) -> Run<()> {
        self.move_blocks(plan)?;
        self.set_up(plan)?;
        self.entries = 0;
        // All rows write before any row reads, as in one layer of a batch: two rows that write to the same block are
        // found out whatever their order.
        for (chunk, tokens) in plan.chunks() {
            self.write_chunk(chunk, tokens)?;
        }
        for step in 0..plan.steps {
            for row in &plan.decode {
                self.write_decode(row.seq, row.slot, row.position as usize, step)?;
            }
            if step == 0 {
                for (chunk, tokens) in plan.chunks() {
                    self.read_chunk(chunk, tokens, options, result)?;
                }
            }
            for row in &plan.decode {
                let slot = self.slot(row.slot, row.seq)?;
                if slot.halt.is_none() {
                    let filled = slot.filled.unwrap_or(0);
                    let context = self.read(row.slot, row.seq, filled.saturating_sub(1), filled)?;
                    self.sample(row.slot, row.seq, context, options, result)?;
                }
            }
        }
        Ok(())
    }

    /// The result of `epoch` has been reported: what it saved may be loaded.
    pub fn report(&mut self, epoch: Epoch) {
        self.rules.report(epoch);
    }

    fn move_blocks(&mut self, plan: &StepPlan) -> Run<()> {
        self.rules.check(plan).map_err(|why| RunError::Bug(format!("{why}, in plan {plan}")))?;
        let cells = |index: usize| index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS;
        for save in &plan.saves {
            self.host[cells(save.host.index())].copy_from_slice(&self.cells[cells(save.block.index())]);
        }
        for load in &plan.loads {
            self.cells[cells(load.block.index())].copy_from_slice(&self.host[cells(load.host.index())]);
        }
        for copy in &plan.copies {
            self.cells.copy_within(cells(copy.source.index()), copy.target.index() * BLOCK_TOKENS);
        }
        Ok(())
    }

    fn set_up(&mut self, plan: &StepPlan) -> Run<()> {
        for slot in &plan.closed_slots {
            match self.slots.get_mut(slot.index()) {
                Some(slot) => *slot = None,
                None => return bug(format!("slot {slot} is closed, but does not exist")),
            }
        }
        for (init, history) in plan.new_owners() {
            let limit = init.position_limit as usize;
            if limit > self.capacity.max_model_len as usize {
                return bug(format!("sequence {} may reach {limit}, beyond the context", init.seq));
            }
            let Some(slot) = self.slots.get_mut(init.slot.index()) else {
                return bug(format!("slot {} is opened, but does not exist", init.slot));
            };
            let table = vec![None; (self.capacity.max_model_len as usize).div_ceil(BLOCK_TOKENS)];
            *slot = Some(Slot {
                owner: init.seq,
                table,
                rules: Rules::new(
                    init.sampling,
                    init.lists.clone(),
                    init.prompt_len as usize,
                    history,
                    self.capacity.vocab_size,
                ),
                limit,
                filled: None,
                context: None,
                token: None,
                halt: None,
            });
        }
        for (row, mask) in plan.slot_masks() {
            let set = self.slot_mut(row.slot, row.seq)?.rules.set_mask(mask);
            set.map_err(|why| RunError::Bug(format!("sequence {}: {why}", row.seq)))?;
        }
        plan.table_updates.iter().try_for_each(|update| self.set_entry(update, plan.epoch))
    }

    /// An entry that is replaced must lead to the same KV, as far as the sequence will read it.
    fn set_entry(&mut self, update: &TableUpdate, epoch: Epoch) -> Run<()> {
        let TableUpdate { slot: id, index, block } = *update;
        if block.0 >= self.capacity.block_count {
            return bug(format!("block {block} does not exist"));
        }
        let slot = self.slots.get_mut(id.index()).and_then(Option::as_mut);
        let Some((slot, entry)) = slot.and_then(|slot| slot.table.get(index as usize).copied().map(|old| (slot, old)))
        else {
            return bug(format!("entry {index} of slot {id} does not exist"));
        };
        if let Some((old, entered)) = entry {
            // The device applies the updates of a plan in any order.
            if entered == epoch {
                return bug(format!("entry {index} of slot {id} is set twice"));
            }
            let filled = slot.filled.unwrap_or(0);
            let first = index as usize * BLOCK_TOKENS;
            let visible = visible_from(&self.capacity, filled);
            for position in first.max(visible)..filled.min(first + BLOCK_TOKENS) {
                let cell = |block: BlockId| self.cells[block.index() * BLOCK_TOKENS + position % BLOCK_TOKENS];
                if cell(old) != cell(block) {
                    return bug(format!(
                        "entry {index} of slot {id} changes from block {old} to {block}, which differs at position {position}"
                    ));
                }
            }
        }
        slot.table[index as usize] = Some((block, epoch));
        Ok(())
    }

    fn slot(&self, id: SlotId, seq: SeqId) -> Run<&Slot> {
        match self.slots.get(id.index()).and_then(Option::as_ref) {
            Some(slot) if slot.owner == seq => Ok(slot),
            Some(slot) => bug(format!("slot {id} belongs to sequence {}, not {seq}", slot.owner)),
            None => bug(format!("slot {id} is closed, but sequence {seq} runs in it")),
        }
    }

    fn slot_mut(&mut self, id: SlotId, seq: SeqId) -> Run<&mut Slot> {
        self.slot(id, seq)?;
        self.slots[id.index()].as_mut().ok_or_else(|| RunError::Bug(format!("slot {id} is closed")))
    }

    fn cell_index(&self, id: SlotId, seq: SeqId, position: usize) -> Run<usize> {
        match self.slot(id, seq)?.table.get(position / BLOCK_TOKENS) {
            Some(Some((block, _))) => Ok(block.index() * BLOCK_TOKENS + position % BLOCK_TOKENS),
            _ => bug(format!("sequence {seq} has no block for position {position}")),
        }
    }

    /// Writes the KV of `position`. Where the sequence starts on cached blocks, the cell before is trusted; `read`
    /// verifies it.
    fn write(&mut self, id: SlotId, seq: SeqId, position: usize, token: TokenId) -> Run<()> {
        let before = match (self.slot(id, seq)?.context, position.checked_sub(1)) {
            (Some(context), _) => context,
            (None, None) => self.start,
            (None, Some(before)) => match self.cells[self.cell_index(id, seq, before)?] {
                Some(cell) => cell.context,
                None => return bug(format!("sequence {seq} reads KV at {before} that was never written")),
            },
        };
        let at = self.cell_index(id, seq, position)?;
        let context = before.then(token);
        self.cells[at] = Some(Cell { position, token, context });
        let slot = self.slot_mut(id, seq)?;
        slot.context = Some(context);
        slot.rules.write(position, token);
        Ok(())
    }

    /// Attends to what rows from `row` up to `end`, all that the sequence has, see of its first `end` positions, and returns
    /// the hash of all of them.
    fn read(&self, id: SlotId, seq: SeqId, row: usize, end: usize) -> Run<Context> {
        let first = visible_from(&self.capacity, row);
        let mut before = (first == 0).then_some(self.start);
        for position in first..end {
            let Some(cell) = self.cells[self.cell_index(id, seq, position)?] else {
                return bug(format!("sequence {seq} reads KV at {position} that was never written"));
            };
            // What lies before the window is known by its hash only, which the end of the chain confirms.
            let fits = before.is_none_or(|before| cell.context == before.then(cell.token));
            if cell.position != position || !fits {
                return bug(format!(
                    "sequence {seq} reads KV at {position}, but finds that of position {} in another context",
                    cell.position
                ));
            }
            before = Some(cell.context);
        }
        match (before, self.slot(id, seq)?.context) {
            (Some(found), Some(written)) if found == written => Ok(found),
            _ => bug(format!("sequence {seq} finds the KV of another sequence in its blocks")),
        }
    }
}
