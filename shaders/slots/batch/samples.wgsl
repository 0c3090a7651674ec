//! use lib/step_inputs
// The gathered rows whose logits are wanted, of one pass.

struct Batch { count: u32, first: u32 }

fn batch_at(index: u32) -> Batch {
    let first = index * TILE;
    let later = inputs.header.sample_count - min(params.first_sample, inputs.header.sample_count);
    let wanted = min(later, params.sample_limit);
    return Batch(wanted - min(first, wanted), first);
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
