//! What the f64 reference refuses: plans that break a promise, sizes and tokens that are impossible.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/solo.rs"]
mod solo;

use octavo::base::{BlockId, SeqId, SlotId};
use octavo::model::files::ModelFiles;
use octavo::reference::{ReferenceOptions, ReferenceRunner};
use octavo::runner::{ModelRunner, RunError};
use octavo::sched::plan::{DecodeRow, StepPlan, TableUpdate};
use solo::{Solo, submit_and_wait};

fn runner() -> ReferenceRunner {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options =
        ReferenceOptions { block_count: 64, slot_count: 4, max_batched_tokens: 256, max_model_len: 256, max_steps: 16 };
    ReferenceRunner::new(&files, options).unwrap()
}

#[test]
fn broken_plans_are_refused_with_the_reason() {
    let solo = Solo::greedy(7, 8);
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    let opened = || {
        let mut runner = runner();
        let mut plan = solo.opening(7);
        solo.add_chunk(&mut plan, &prompt, 0);
        submit_and_wait(&mut runner, &plan);
        runner
    };
    let row = DecodeRow { seq: solo.seq, slot: solo.slot, position: 7 };
    let step = |rows: &[DecodeRow]| StepPlan { steps: 1, decode: rows.to_vec(), ..StepPlan::default() };
    submit_and_wait(&mut opened(), &step(&[row]));

    let mut unopened_table = step(&[row]);
    unopened_table.table_updates.push(TableUpdate { slot: SlotId(1), index: 0, block: BlockId(0) });
    let mut prefill_again = StepPlan { steps: 1, ..StepPlan::default() };
    solo.add_chunk(&mut prefill_again, &prompt, 0);
    let mut hole = Solo { slot: SlotId(1), seq: SeqId(2), blocks: vec![BlockId(5)], ..solo.clone() };
    hole.chunk = 4;
    let mut unwritten = hole.opening(7);
    hole.add_chunk(&mut unwritten, &prompt, 3);
    let outside = Solo { blocks: vec![BlockId(64)], ..hole.clone() }.opening(7);
    let mut no_token = hole.opening(7);
    hole.add_chunk(&mut no_token, &[1, 515, 3, 4], 0);
    let mut shared = Solo { blocks: solo.blocks.clone(), ..hole.clone() }.opening(7);
    hole.add_chunk(&mut shared, &prompt, 0);
    let cases = [
        (step(&[DecodeRow { position: 8, ..row }]), "decodes at 8 but stands at 7"),
        (step(&[DecodeRow { seq: SeqId(9), ..row }]), "slot 0 belongs to 1, not to 9"),
        (step(&[DecodeRow { slot: SlotId(1), ..row }]), "which nobody owns"),
        (step(&[row, row]), "slot 0 is named twice"),
        (StepPlan { steps: 17, ..step(&[row]) }, "17 steps"),
        (unopened_table, "table of slot 1, which nobody owns"),
        (prefill_again, "a chunk of 7 tokens for 1 with"),
        (unwritten, "reads position 0, where its table leads to None"),
        (outside, "block 64 of 64"),
        (no_token, "is outside 515 tokens"),
        (shared, "which slot 0 shares"),
    ];
    for (plan, reason) in cases {
        match opened().submit(&plan) {
            Err(RunError::Bug(message)) => assert!(message.contains(reason), "{message} lacks {reason}"),
            other => panic!("{plan} gave {other:?}, expected {reason}"),
        }
    }
}

#[test]
fn impossible_sizes_and_tokens_are_errors() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let options =
        ReferenceOptions { block_count: 8, slot_count: 1, max_batched_tokens: 8, max_model_len: 64, max_steps: 1 };
    let refused = |options| match ReferenceRunner::new(&files, options) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{options:?} was accepted"),
    };
    assert_eq!(refused(ReferenceOptions { slot_count: 0, ..options }), "slot_count is 0, but must be at least 1");
    let message = refused(ReferenceOptions { max_model_len: 513, ..options });
    assert_eq!(message, "max_model_len is 513, but the model ends at 512");
    let mut runner = ReferenceRunner::new(&files, options).unwrap();
    assert!(runner.logits(&[515]).unwrap_err().to_string().contains("outside the vocabulary of 515"));
    assert!(runner.logits(&[1; 65]).unwrap_err().to_string().contains("exceed the 64 positions"));
}
