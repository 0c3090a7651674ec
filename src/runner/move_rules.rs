//! What every runner demands of a plan's block moves, whatever its memory is: the device's blocks and the host's are known
//! by number, content is on the host before it comes back, and the moves of one plan do not depend on their order.

use crate::base::{BlockId, Epoch};
use crate::runner::Capacity;
use crate::sched::plan::StepPlan;

/// Remembers which host blocks hold what was reported.
#[derive(Clone, Debug)]
pub(crate) struct MoveRules {
    block_count: u32,
    /// The submission that saved to each host block last.
    saved_by: Vec<Option<Epoch>>,
    reported: Option<Epoch>,
    /// The last plan.
    latest: Epoch,
    filled: Vec<BlockId>,
}

impl MoveRules {
    /// Nothing is saved.
    pub(crate) fn new(capacity: &Capacity) -> Self {
        Self {
            block_count: capacity.block_count,
            saved_by: vec![None; capacity.host_blocks as usize],
            reported: None,
            latest: Epoch(0),
            filled: Vec::new(),
        }
    }

    /// Checks the moves of a plan that is being submitted and takes note of its saves.
    ///
    /// # Errors
    /// Says which move breaks a rule: a block that does not exist; a host block that is loaded before the result of
    /// the submission that saved it was reported, or that is saved twice; a block that is filled twice, or is both source
    /// and target of copies.
    pub(crate) fn check(&mut self, plan: &StepPlan) -> Result<(), String> {
        if plan.epoch <= self.latest {
            // A new scheduler counts from the start again, and nothing that another one saved concerns it.
            self.saved_by.fill(None);
            self.reported = None;
        }
        self.latest = plan.epoch;
        let block_count = self.block_count;
        let exists = |block: BlockId| match block.0 < block_count {
            true => Ok(block),
            false => Err(format!("block {block} of {block_count} is moved")),
        };
        let host_count = self.saved_by.len();
        for save in &plan.saves {
            exists(save.block)?;
            match self.saved_by.get_mut(save.host.index()) {
                Some(epoch) if *epoch == Some(plan.epoch) => {
                    return Err(format!("host block {} is saved twice", save.host));
                }
                Some(epoch) => *epoch = Some(plan.epoch),
                None => {
                    return Err(format!("block {} is saved to host block {} of {host_count}", save.block, save.host));
                }
            }
        }
        for load in &plan.loads {
            exists(load.block)?;
            match self.saved_by.get(load.host.index()) {
                Some(Some(epoch)) if Some(*epoch) <= self.reported => {}
                Some(Some(epoch)) => {
                    let host = load.host;
                    return Err(format!(
                        "host block {host} is loaded before the end of submission {epoch}, which saves it"
                    ));
                }
                Some(None) => return Err(format!("host block {} is loaded, but was never saved", load.host)),
                None => {
                    return Err(format!(
                        "block {} is loaded from host block {} of {host_count}",
                        load.block, load.host
                    ));
                }
            }
        }
        self.filled.clear();
        for copy in &plan.copies {
            exists(copy.source)?;
            self.filled.push(exists(copy.target)?);
        }
        self.filled.sort_unstable();
        if let Some(copy) = plan.copies.iter().find(|copy| self.filled.binary_search(&copy.source).is_ok()) {
            return Err(format!("block {} is copied and copied to", copy.source));
        }
        self.filled.extend(plan.loads.iter().map(|load| load.block));
        self.filled.sort_unstable();
        match self.filled.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("block {} is filled twice", pair[0])),
            None => Ok(()),
        }
    }

    /// Takes note that the result of `epoch`, and so what it saved, has been reported.
    pub(crate) fn report(&mut self, epoch: Epoch) {
        self.reported = self.reported.max(Some(epoch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::HostBlockId;
    use crate::runner::mock::MockOptions;
    use crate::sched::plan::{BlockCopy, BlockLoad, BlockSave};

    fn rules() -> MoveRules {
        MoveRules::new(&Capacity { block_count: 8, host_blocks: 2, ..MockOptions::default().capacity })
    }

    fn plan(epoch: u64, saves: &[(u32, u32)], loads: &[(u32, u32)], copies: &[(u32, u32)]) -> StepPlan {
        let save = |&(block, host): &(u32, u32)| BlockSave { block: BlockId(block), host: HostBlockId(host) };
        let load = |&(host, block): &(u32, u32)| BlockLoad { host: HostBlockId(host), block: BlockId(block) };
        let copy = |&(source, target): &(u32, u32)| BlockCopy { source: BlockId(source), target: BlockId(target) };
        StepPlan {
            epoch: Epoch(epoch),
            saves: saves.iter().map(save).collect(),
            loads: loads.iter().map(load).collect(),
            copies: copies.iter().map(copy).collect(),
            ..StepPlan::default()
        }
    }

    #[test]
    fn content_is_on_the_host_once_its_save_was_reported() {
        let mut rules = rules();
        let load = |epoch| plan(epoch, &[], &[(1, 3)], &[]);
        assert_eq!(rules.check(&load(1)).unwrap_err(), "host block 1 is loaded, but was never saved");
        rules.check(&plan(2, &[(5, 1)], &[], &[])).unwrap();
        assert!(rules.check(&load(3)).unwrap_err().contains("before the end of submission 2"));
        rules.report(Epoch(2));
        rules.check(&load(4)).unwrap();
        // The old content is gone as soon as the next save is under way.
        assert!(rules.check(&plan(5, &[(6, 1)], &[(1, 3)], &[])).unwrap_err().contains("submission 5"));
        assert!(rules.check(&load(6)).is_err());
        rules.report(Epoch(7));
        rules.check(&load(8)).unwrap();
    }

    #[test]
    fn a_new_scheduler_starts_with_an_empty_host() {
        let mut rules = rules();
        rules.check(&plan(2, &[(5, 1)], &[], &[])).unwrap();
        rules.report(Epoch(2));
        rules.check(&plan(1, &[], &[], &[])).unwrap();
        rules.check(&plan(2, &[(5, 1)], &[], &[])).unwrap();
        assert!(rules.check(&plan(3, &[], &[(1, 3)], &[])).unwrap_err().contains("before the end of submission 2"));
    }

    #[test]
    fn moves_that_do_not_exist_or_depend_on_their_order_are_refused() {
        let refusal = |plan: StepPlan| rules().check(&plan).unwrap_err();
        assert_eq!(refusal(plan(1, &[(8, 0)], &[], &[])), "block 8 of 8 is moved");
        assert_eq!(refusal(plan(1, &[(0, 2)], &[], &[])), "block 0 is saved to host block 2 of 2");
        assert_eq!(refusal(plan(1, &[], &[(2, 0)], &[])), "block 0 is loaded from host block 2 of 2");
        assert_eq!(refusal(plan(1, &[], &[], &[(0, 9)])), "block 9 of 8 is moved");
        assert_eq!(refusal(plan(1, &[(0, 1), (2, 1)], &[], &[])), "host block 1 is saved twice");
        assert_eq!(refusal(plan(1, &[], &[], &[(0, 1), (1, 2)])), "block 1 is copied and copied to");
        assert_eq!(refusal(plan(1, &[], &[], &[(3, 3)])), "block 3 is copied and copied to");
        assert_eq!(refusal(plan(1, &[], &[], &[(0, 2), (1, 2)])), "block 2 is filled twice");
        // One source may serve several, and the same block may go to several places of the host.
        let mut rules = rules();
        rules.check(&plan(1, &[(0, 0), (0, 1)], &[], &[(0, 2), (0, 3)])).unwrap();
        rules.report(Epoch(1));
        // What was loaded may be copied on, and what is saved may be overwritten.
        rules.check(&plan(2, &[(4, 1)], &[(0, 4)], &[(4, 5)])).unwrap();
        assert_eq!(rules.check(&plan(3, &[], &[(0, 4)], &[(1, 4)])).unwrap_err(), "block 4 is filled twice");
    }
}
