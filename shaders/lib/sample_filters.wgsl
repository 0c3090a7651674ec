//! Which tokens survive a request's filters, as the smallest key that does: tokens survive in the order min-p, top-k, top-p, and each
//! rule keeps those at or above some logit. Where the likeliest few decide, they are gathered and sorted; else that logit is
//! searched among all. Reads `partials` and `params` of the kernel.
//! use lib/seq_state lib/sample_row lib/candidates lib/key_search

var<workgroup> candidate_mass: array<f32, CANDIDATES>;
var<workgroup> threshold_key: u32;

// The smallest key that survives min-p: weight >= min_p as a bound on the logit. Without min-p that of any token that may come.
fn min_p_key(row: Row, min_p: f32) -> u32 {
    if min_p <= 0.0 {
        return DROPPED_KEY + 1u;
    }
    // Below every positive float.
    const NO_WEIGHT: f32 = -110.0;
    var low = max(sortable(row.largest + NO_WEIGHT / row.inverse_temperature), DROPPED_KEY + 1u);
    var high = sortable(row.largest);
    while low < high {
        let middle = low + (high - low) / 2u;
        if weight(row, value_of(middle)) >= min_p {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return low;
}

// The largest of the lane's share of keys: of every WG_X-th token, or of every WG_X-th group of them where there are enough.
fn largest_of_lane(row: Row, by_group: bool, lane: u32) -> u32 {
    var key = 0u;
    if by_group {
        for (var i = lane; i < params.block_count * GROUP_COUNT; i += WG_X) {
            key = max(key, sortable(partials[row.partials_at + i / GROUP_COUNT].groups[i % GROUP_COUNT]));
        }
    } else {
        for (var i = lane; i < row.limit; i += WG_X) {
            key = max(key, sortable(logit_of(row, i)));
        }
    }
    return key;
}

// All tokens at or above a bound, sorted, unless they are more than there is room for.
struct Candidates {
    bound: u32,
    count: u32,
}

// Gathers and sorts the tokens at or above `bound`; the number of them.
fn gather_from(row: Row, bound: u32, by_group: bool, lane: u32) -> u32 {
    if by_group {
        for (var group = lane; group < params.block_count * GROUP_COUNT; group += WG_X) {
            let block = group / GROUP_COUNT;
            if sortable(partials[row.partials_at + block].groups[group % GROUP_COUNT]) >= bound {
                let begin = block * VOCAB_BLOCK;
                let end = min(begin + VOCAB_BLOCK, row.limit);
                for (var i = begin + group % GROUP_COUNT; i < end; i += GROUP_COUNT) {
                    let key = sortable(logit_of(row, i));
                    if key >= bound {
                        gather(key, i);
                    }
                }
            }
        }
    } else {
        for (var i = lane; i < row.limit; i += WG_X) {
            let key = sortable(logit_of(row, i));
            if key >= bound {
                gather(key, i);
            }
        }
    }
    return sort_gathered(lane);
}

// The likeliest tokens, with their masses: at least `ranks` of them, if so many may come.
fn gather_candidates(row: Row, ranks: u32, lane: u32) -> Candidates {
    let by_group = params.block_count * GROUP_COUNT >= 2u * WG_X;
    let nth = nth_of_lanes(largest_of_lane(row, by_group, lane), ranks, lane);
    let bound = max(nth, DROPPED_KEY + 1u);
    let count = gather_from(row, bound, by_group, lane);
    if count <= CANDIDATES {
        for (var i = lane; i < count; i += WG_X) {
            candidate_mass[i] = weight(row, value_of(sorted_key[i]));
        }
    }
    return Candidates(bound, count);
}

// The smallest key that survives all filters, from the sorted candidates; `total` is the mass of all tokens. 0 if the candidates
// do not decide. By one lane.
fn sorted_threshold(state: SeqState, min_p_bound: u32, candidates: Candidates, total: f32) -> u32 {
    let bound = candidates.bound;
    let count = candidates.count;
    var lowest = min_p_bound;
    if state.top_k > 0u && state.top_k < params.vocab_size {
        if state.top_k <= count {
            lowest = max(lowest, sorted_key[state.top_k - 1u]);
        } else if lowest < bound {
            return 0u;
        }
    }
    let complete = lowest >= bound;
    if state.top_p >= 1.0 {
        return select(0u, lowest, complete);
    }
    var mass = total;
    if complete {
        mass = 0.0;
        for (var i = 0u; i < count && sorted_key[i] >= lowest; i++) {
            mass += candidate_mass[i];
        }
    } else if lowest > DROPPED_KEY + 1u {
        // Nobody knows the mass that min-p leaves.
        return 0u;
    }
    let enough = state.top_p * mass;
    var reached = 0.0;
    var key = 0xffffffffu;
    for (var i = 0u; i < count && sorted_key[i] >= lowest; i++) {
        // Equal tokens stay or go together.
        if i > 0u && sorted_key[i] != key && reached >= enough {
            return key;
        }
        key = sorted_key[i];
        reached += candidate_mass[i];
    }
    return select(0u, key, complete || reached >= enough);
}

// The same for every lane; there may be too many candidates.
fn decide(state: SeqState, min_p_bound: u32, candidates: Candidates, total: f32, lane: u32) -> u32 {
    workgroupBarrier();
    if lane == 0u {
        threshold_key = 0u;
        if candidates.count <= CANDIDATES {
            threshold_key = sorted_threshold(state, min_p_bound, candidates, total);
        }
    }
    workgroupBarrier();
    return threshold_key;
}

// The same by search over all tokens.
fn searched_threshold(row: Row, state: SeqState, min_p_bound: u32, lane: u32) -> u32 {
    // See key_reached_by.
    if lane == 0u {
        searched = vec2(min_p_bound, sortable(row.largest));
    }
    let bounds = workgroupUniformLoad(&searched);
    let highest = bounds.y;
    var lowest = bounds.x;
    if state.top_k > 0u && state.top_k < params.vocab_size {
        // Ties with the last of them stay.
        lowest = key_reached_by(row, lowest, highest, BY_NUMBER, f32(state.top_k), lane);
    }
    if state.top_p < 1.0 {
        lowest = key_reached_by(row, lowest, highest, BY_MASS, state.top_p, lane);
    }
    return lowest;
}
