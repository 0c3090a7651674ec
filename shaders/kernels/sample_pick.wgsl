//! kernel sample_pick
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params lib/candidates lib/rng
// Second pass, one workgroup a wanted row: picks the token (or takes the known one that is scored) and moves the slot on.
//
// Tokens survive in the order min-p, top-k, top-p. Each rule keeps the tokens at or above some logit. Where the likeliest few
// decide, they are gathered and sorted; else that logit is searched, bit by bit, on the sortable integer image of floats. Among
// the survivors the cumulative distribution over ascending tokens is inverted at one counter-based random number.

@group(0) @binding(1) var<storage, read_write> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> partials: array<Partial>;
@group(0) @binding(5) var<storage, read_write> sampled: array<Sampled>;
@group(0) @binding(6) var<uniform> params: SampleParams;

// Ways to a token, for tests.
const GIVEN: u32 = 0u;       // scored, or none
const LARGEST: u32 = 1u;
const UNFILTERED: u32 = 2u;
const SORTED: u32 = 3u;
const SEARCHED: u32 = 4u;

var<workgroup> first_token: atomic<u32>;
var<workgroup> any_bad: atomic<u32>;
var<workgroup> lane_mass: array<f32, WG_X>;
var<workgroup> candidate_mass: array<f32, CANDIDATES>;
var<workgroup> owner_lane: u32;
var<workgroup> mass_before: f32;
var<workgroup> chosen: u32;
var<workgroup> threshold_key: u32;

struct Row {
    at: u32,                   // first logit, after the rules of the request
    partials_at: u32,
    limit: u32,                // tokens that may come are below
    largest: f32,
    inverse_temperature: f32,
}

// DROPPED if the token may not come.
fn logit_of(row: Row, token: u32) -> f32 {
    return logits[row.at + token];
}

fn weight(row: Row, logit: f32) -> f32 {
    return exp((logit - row.largest) * row.inverse_temperature);
}

// The logit of a key, up to the sign of zero.
fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, (key & 0x80000000u) != 0u));
}

// Mass of the tokens of a block of the vocabulary.
fn block_mass(row: Row, block: u32) -> f32 {
    if block >= params.block_count || partials[row.partials_at + block].token == NONE {
        return 0.0;
    }
    return partials[row.partials_at + block].sum * weight(row, partials[row.partials_at + block].largest);
}

// Number of tokens at or above `key`.
fn count_from(row: Row, key: u32, lane: u32) -> u32 {
    var count = 0u;
    for (var i = lane; i < row.limit; i += WG_X) {
        count += select(0u, 1u, sortable(logit_of(row, i)) >= key);
    }
    // Exact in f32: a vocabulary is far below 2^24.
    return u32(reduce_add(f32(count), lane));
}

// Mass of the tokens at or above `key`, which is above DROPPED_KEY.
fn mass_from(row: Row, key: u32, lane: u32) -> f32 {
    var mass = 0.0;
    for (var i = lane; i < row.limit; i += WG_X) {
        let logit = logit_of(row, i);
        if sortable(logit) >= key {
            mass += weight(row, logit);
        }
    }
    return reduce_add(mass, lane);
}

// The smallest key that survives min-p: weight >= min_p as a bound on the logit.
fn min_p_key(row: Row, min_p: f32) -> u32 {
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

// The smallest key that survives all filters, from the `count` sorted candidates, which are all tokens at or above `bound`;
// `total` is the mass of all tokens. 0 if the candidates do not decide. By one lane.
fn sorted_threshold(state: SeqState, min_p_bound: u32, bound: u32, count: u32, total: f32) -> u32 {
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

// The same by search over all tokens.
fn searched_threshold(row: Row, state: SeqState, min_p_bound: u32, lane: u32) -> u32 {
    let highest = sortable(row.largest);
    var lowest = min_p_bound;
    if state.top_k > 0u && state.top_k < params.vocab_size && count_from(row, lowest, lane) > state.top_k {
        // The largest key that at least top_k tokens reach; ties with the k-th stay.
        var low = lowest;
        var high = highest;
        while low < high {
            let middle = low + (high - low) / 2u + 1u;
            if count_from(row, middle, lane) >= state.top_k {
                low = middle;
            } else {
                high = middle - 1u;
            }
        }
        lowest = low;
    }
    if state.top_p < 1.0 {
        let enough = state.top_p * mass_from(row, lowest, lane);
        var low = lowest;
        var high = highest;
        while low < high {
            let middle = low + (high - low) / 2u;
            if mass_from(row, middle + 1u, lane) < enough {
                high = middle;
            } else {
                low = middle + 1u;
            }
        }
        lowest = low;
    }
    return lowest;
}

// Finds the lane in which the masses of the lanes, one after another, exceed `wanted`, and the mass before it. Where rounding
// leaves `wanted` beyond all of them it is the last lane whose mass the sum notices.
fn find_owner(mass: f32, wanted: f32, lane: u32) {
    workgroupBarrier();
    lane_mass[lane] = mass;
    workgroupBarrier();
    if lane == 0u {
        var sum = 0.0;
        for (var other = 0u; other < WG_X; other++) {
            let next = sum + lane_mass[other];
            if next > sum {
                owner_lane = other;
                mass_before = sum;
                if wanted < next {
                    break;
                }
            }
            sum = next;
        }
    }
    workgroupBarrier();
}

// Draws among the tokens from `begin` to `end` at or above `key`: the first at which the mass exceeds `wanted`, by the same rule.
// Lanes own neighbouring tokens.
fn draw_within(row: Row, key: u32, begin: u32, end: u32, wanted: f32, lane: u32) -> u32 {
    let share = (end - begin + WG_X - 1u) / WG_X;
    let own_begin = begin + lane * share;
    let own_end = min(own_begin + share, end);
    var mass = 0.0;
    for (var i = own_begin; i < own_end; i++) {
        let logit = logit_of(row, i);
        if sortable(logit) >= key {
            mass += weight(row, logit);
        }
    }
    find_owner(mass, wanted, lane);
    if lane == owner_lane {
        let rest = wanted - mass_before;
        var sum = 0.0;
        for (var i = own_begin; i < own_end; i++) {
            let logit = logit_of(row, i);
            if sortable(logit) >= key {
                let next = sum + weight(row, logit);
                if next > sum {
                    chosen = i;
                    if rest < next {
                        break;
                    }
                }
                sum = next;
            }
        }
    }
    workgroupBarrier();
    return chosen;
}

// Draws among all tokens that may come: first the block, by what the first pass knows of it.
fn draw_unfiltered(row: Row, wanted: f32, lane: u32) -> u32 {
    let share = (params.block_count + WG_X - 1u) / WG_X;
    var mass = 0.0;
    for (var i = 0u; i < share; i++) {
        mass += block_mass(row, lane * share + i);
    }
    find_owner(mass, wanted, lane);
    var rest = wanted - mass_before;
    var block = owner_lane * share;
    var before = 0.0;
    var sum = 0.0;
    for (var i = 0u; i < share; i++) {
        let next = sum + block_mass(row, owner_lane * share + i);
        if next > sum {
            block = owner_lane * share + i;
            before = sum;
            if rest < next {
                break;
            }
        }
        sum = next;
    }
    let begin = block * VOCAB_BLOCK;
    return draw_within(row, DROPPED_KEY + 1u, begin, min(begin + VOCAB_BLOCK, row.limit), rest - before, lane);
}

// Draws among the sorted candidates at or above `key`, of which there are `count`.
fn draw_sorted(key: u32, count: u32, uniform: f32, lane: u32) -> u32 {
    // Back into the order of tokens.
    for (var own = lane; own < count; own += WG_X) {
        if sorted_key[own] >= key {
            var before = 0u;
            for (var other = 0u; other < count && sorted_key[other] >= key; other++) {
                before += select(0u, 1u, sorted_token[other] < sorted_token[own]);
            }
            found_token[before] = sorted_token[own];
            // Masses travel as bits: the keys of what was gathered are no longer needed.
            found_key[before] = bitcast<u32>(candidate_mass[own]);
        }
    }
    workgroupBarrier();
    if lane == 0u {
        var survivors = 0u;
        var total = 0.0;
        for (var i = 0u; i < count && sorted_key[i] >= key; i++) {
            survivors += 1u;
            total += bitcast<f32>(found_key[i]);
        }
        let wanted = uniform * total;
        var sum = 0.0;
        for (var i = 0u; i < survivors; i++) {
            let next = sum + bitcast<f32>(found_key[i]);
            if next > sum {
                chosen = found_token[i];
                if wanted < next {
                    break;
                }
            }
            sum = next;
        }
    }
    workgroupBarrier();
    return chosen;
}

fn is_stop(slot: u32, token: u32) -> bool {
    for (var i = 0u; i < min(slots[slot].stop_count, 8u); i++) {
        if slots[slot].stops[i] == token {
            return true;
        }
    }
    return false;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let sample = params.first_sample + workgroup.x;
    if sample >= inputs.header.sample_count {
        return;
    }
    let entry = inputs.entries[inputs.header.samples_at + sample];
    let slot = entry.y;
    let position = rows[entry.x].z;
    if position == NONE {
        if lane == 0u {
            sampled[sample] = Sampled(NONE, 0.0, 0.0, 0.0, 0u, 0u, GIVEN, 0u);
        }
        return;
    }
    let state = slots[slot];
    let scored = entry.z != NONE;
    let draws = !scored && state.temperature > 0.0;
    let raw_at = workgroup.x * params.logits_stride;
    var row = Row(raw_at, workgroup.x * params.block_count, params.vocab_size, DROPPED, 1.0);
    if !scored {
        row.limit = min(params.vocab_size, state.token_limit);
        row.at = select(raw_at, params.processed_at + workgroup.x * params.processed_stride, has_rules(state));
    }
    if draws {
        row.inverse_temperature = 1.0 / state.temperature;
    }

    if lane == 0u {
        atomicStore(&first_token, NONE);
        atomicStore(&any_bad, 0u);
    }
    var largest = DROPPED;
    var own_token = NONE;
    var raw_largest = DROPPED;
    var bad = 0u;
    for (var block = lane; block < params.block_count; block += WG_X) {
        let at = row.partials_at + block;
        bad |= partials[at].bad;
        raw_largest = max(raw_largest, partials[at].raw_largest);
        if partials[at].largest > largest {
            largest = partials[at].largest;
            own_token = partials[at].token;
        }
    }
    row.largest = reduce_max(largest, lane);
    if largest == row.largest && own_token != NONE {
        atomicMin(&first_token, own_token);
    }
    if bad != 0u {
        atomicOr(&any_bad, 1u);
    }
    workgroupBarrier();
    var token = atomicLoad(&first_token);
    var path = LARGEST;
    var key = sortable(row.largest);
    if atomicLoad(&any_bad) != 0u {
        token = BAD_LOGITS;
        path = GIVEN;
    } else if scored {
        token = entry.z;
        path = GIVEN;
    } else if token == NONE {
        token = NOTHING_ALLOWED;
        path = GIVEN;
    } else if draws {
        let uniform = token_uniform(state.seed_low, state.seed_high, position + 1u);
        var total = 0.0;
        for (var block = lane; block < params.block_count; block += WG_X) {
            total += block_mass(row, block);
        }
        total = reduce_add(total, lane);
        if !has_filters(state, params.vocab_size) {
            path = UNFILTERED;
            key = DROPPED_KEY + 1u;
            token = draw_unfiltered(row, uniform * total, lane);
        } else {
            var min_p_bound = DROPPED_KEY + 1u;
            if state.min_p > 0.0 {
                min_p_bound = min_p_key(row, state.min_p);
            }
            let by_group = params.block_count * GROUP_COUNT >= 2u * WG_X;
            let nth = nth_of_lanes(largest_of_lane(row, by_group, lane), SORTED_RANKS, lane);
            let bound = max(nth, DROPPED_KEY + 1u);
            let count = gather_from(row, bound, by_group, lane);
            let fits = count <= CANDIDATES;
            if fits {
                for (var i = lane; i < count; i += WG_X) {
                    candidate_mass[i] = weight(row, value_of(sorted_key[i]));
                }
            }
            workgroupBarrier();
            if lane == 0u {
                threshold_key = 0u;
                if fits {
                    threshold_key = sorted_threshold(state, min_p_bound, bound, count, total);
                }
            }
            workgroupBarrier();
            let decided = threshold_key;
            if decided != 0u {
                path = SORTED;
                key = decided;
                token = draw_sorted(decided, count, uniform, lane);
            } else {
                path = SEARCHED;
                key = searched_threshold(row, state, min_p_bound, lane);
                let wanted = uniform * mass_from(row, key, lane);
                token = draw_within(row, key, 0u, row.limit, wanted, lane);
            }
        }
    }

    // The model's own distribution, where somebody wants to know.
    var raw_sum = 0.0;
    if scored || entry.w != NONE {
        raw_largest = reduce_max(raw_largest, lane);
        for (var block = lane; block < params.block_count; block += WG_X) {
            let at = row.partials_at + block;
            raw_sum += partials[at].raw_sum * exp(partials[at].raw_largest - raw_largest);
        }
        raw_sum = reduce_add(raw_sum, lane);
    }
    if lane == 0u {
        var logit = 0.0;
        if token < params.vocab_size {
            logit = logits[raw_at + token];
        }
        sampled[sample] = Sampled(token, raw_largest, raw_sum, logit, 0u, key, path, 0u);
        if !scored {
            let next = position + 1u;
            slots[slot].token = min(token, params.vocab_size - 1u);
            slots[slot].position = next;
            let over = token >= NOTHING_ALLOWED || next + 1u >= state.position_limit || is_stop(slot, token);
            slots[slot].done = select(0u, 1u, over);
        }
    }
}
