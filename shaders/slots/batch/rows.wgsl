//! use lib/step_inputs
// All token rows of the step.

struct Batch { count: u32, first: u32 }

fn batch_at(index: u32) -> Batch {
    let first = index * TILE;
    return Batch(inputs.header.row_count - min(first, inputs.header.row_count), first);
}

fn input_at(batch: Batch, member: u32) -> u32 {
    return batch.first * params.x_stride + member * params.x_stride;
}

fn output_row(batch: Batch, member: u32) -> u32 {
    return batch.first + member;
}

fn first_group(batch: Batch) -> u32 {
    return 0u;
}
