//! use lib/routes
// Pairs of a token and a chosen expert, by the tiles of `routes`: all pairs of a tile share their expert. The planes hold the
// matrices of consecutive experts one after another.

@group(0) @binding(14) var<storage, read> routes: array<u32>;

struct Batch { count: u32, matrix: u32, pairs: array<u32, TILE> }

fn batch_at(index: u32) -> Batch {
    var batch: Batch;
    if index >= routes[0] {
        return batch;
    }
    let at = route_at(index, TILE);
    // Past the last expert of this shard, or below its first.
    let matrix = routes[at] - params.first_expert;
    if matrix >= params.expert_count {
        return batch;
    }
    batch.matrix = matrix;
    for (var member = 0u; member < TILE; member++) {
        let pair = routes[at + 1u + member];
        // Members that a short tile lacks read its first one.
        batch.pairs[member] = select(pair, routes[at + 1u], pair == NO_PAIR);
        batch.count += select(1u, 0u, pair == NO_PAIR);
    }
    return batch;
}

fn input_at(batch: Batch, member: u32) -> u32 {
    var pairs = batch.pairs;
    return pairs[member] / params.pairs_per_input * params.x_stride;
}

fn output_row(batch: Batch, member: u32) -> u32 {
    var pairs = batch.pairs;
    return pairs[member];
}

fn first_group(batch: Batch) -> u32 {
    return batch.matrix * params.group_count;
}
