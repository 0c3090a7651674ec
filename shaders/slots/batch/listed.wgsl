//! use lib/listed_rows
// All token rows of the step, for products that read the list of rows anyway.

struct Batch { count: u32, first: u32 }

fn batch_at(index: u32) -> Batch {
    var batch = Batch(0u, index * TILE);
    // Padding stands at the end; rows that are finished, anywhere.
    for (var member = 0u; member < TILE; member++) {
        if rows[batch.first + member].z != NOTHING {
            batch.count = member + 1u;
        }
    }
    return batch;
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
