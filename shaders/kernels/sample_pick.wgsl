//! kernel sample_pick
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params lib/rng
// Second pass, one workgroup a wanted row: picks the token (or scores a known one) and moves the slot on.
//
// Tokens survive in the order min-p, top-k, top-p. Each rule keeps the tokens at or above some logit, so the sampler searches
// that logit, bit by bit, on the sortable integer image of floats, and never sorts. Among the survivors it inverts the
// cumulative distribution at one counter-based random number; any fixed order of tokens will do, and lane by lane is cheapest.

struct Sampled {
    token: u32,           // NONE: the row had nothing to do; BAD_LOGITS: its logits were not finite
    largest: f32,         // of the logits
    sum: f32,             // of exp(logit - largest)
    logit: f32,           // of the token
}

@group(0) @binding(1) var<storage, read_write> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> partials: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> sampled: array<Sampled>;
@group(0) @binding(6) var<uniform> params: SampleParams;

const BAD_LOGITS: u32 = 0xfffffffeu;

var<workgroup> lane_mass: array<f32, WG_X>;
var<workgroup> lane_last: array<u32, WG_X>;
var<workgroup> chosen: u32;

// Order of floats as order of integers; zeros of both signs are equal.
fn sortable(value: f32) -> u32 {
    let bits = select(bitcast<u32>(value), 0u, value == 0.0);
    return bits ^ select(0x80000000u, 0xffffffffu, (bits & 0x80000000u) != 0u);
}

struct Row {
    source_at: u32,            // first logit
    largest: f32,
    inverse_temperature: f32,
}

fn weight(row: Row, logit: f32) -> f32 {
    return exp((logit - row.largest) * row.inverse_temperature);
}

// Number of tokens at or above `key`.
fn count_from(row: Row, key: u32, lane: u32) -> u32 {
    var count = 0u;
    for (var i = lane; i < params.vocab_size; i += WG_X) {
        count += select(0u, 1u, sortable(logits[row.source_at + i]) >= key);
    }
    // Exact in f32: a vocabulary is far below 2^24.
    return u32(reduce_add(f32(count), lane));
}

// Mass of the tokens above `key`, not counting equals.
fn mass_above(row: Row, key: u32, lane: u32) -> f32 {
    var mass = 0.0;
    for (var i = lane; i < params.vocab_size; i += WG_X) {
        let logit = logits[row.source_at + i];
        if sortable(logit) > key {
            mass += weight(row, logit);
        }
    }
    return reduce_add(mass, lane);
}

// The smallest key that survives min-p, top-k and top-p.
fn threshold(row: Row, slot: u32, lane: u32) -> u32 {
    let min_p = slots[slot].min_p;
    let top_k = slots[slot].top_k;
    let top_p = slots[slot].top_p;
    let highest = sortable(row.largest);
    var lowest = 0u;
    if min_p > 0.0 {
        // weight >= min_p, as a bound on the logit; found by the same search, since rounding must not lose the largest.
        var low = 0u;
        var high = highest;
        while low < high {
            let middle = low + (high - low) / 2u;
            let bits = select(~middle, middle ^ 0x80000000u, (middle & 0x80000000u) != 0u);
            // Keys of infinities and what lies beyond them are below every finite logit; exp would not survive them.
            let finite = (bits & 0x7f800000u) != 0x7f800000u;
            if finite && weight(row, bitcast<f32>(bits)) >= min_p {
                high = middle;
            } else {
                low = middle + 1u;
            }
        }
        lowest = low;
    }
    if top_k > 0u && top_k < params.vocab_size {
        // The largest key that at least top_k tokens reach; ties with the k-th stay.
        var low = lowest;
        var high = highest;
        if count_from(row, low, lane) > top_k {
            while low < high {
                let middle = low + (high - low) / 2u + 1u;
                if count_from(row, middle, lane) >= top_k {
                    low = middle;
                } else {
                    high = middle - 1u;
                }
            }
        }
        lowest = low;
    }
    if top_p < 1.0 {
        let floor = select(0u, lowest - 1u, lowest > 0u);
        let enough = top_p * mass_above(row, floor, lane);
        var low = lowest;
        var high = highest;
        while low < high {
            let middle = low + (high - low) / 2u;
            if mass_above(row, middle, lane) < enough {
                high = middle;
            } else {
                low = middle + 1u;
            }
        }
        lowest = low;
    }
    return lowest;
}

// Inverts the cumulative distribution of the tokens at or above `key` at `uniform`.
fn draw(row: Row, key: u32, uniform: f32, lane: u32) -> u32 {
    var mass = 0.0;
    var last = NONE;
    for (var i = lane; i < params.vocab_size; i += WG_X) {
        let logit = logits[row.source_at + i];
        if sortable(logit) >= key {
            mass += weight(row, logit);
            last = i;
        }
    }
    lane_mass[lane] = mass;
    lane_last[lane] = last;
    workgroupBarrier();
    if lane == 0u {
        var total = 0.0;
        for (var other = 0u; other < WG_X; other++) {
            total += lane_mass[other];
        }
        // Rounding may leave the target beyond the last survivor, so the last lane that has one keeps what is left.
        var target_mass = uniform * total;
        var owner = 0u;
        for (var other = 0u; other < WG_X; other++) {
            if lane_last[other] != NONE {
                owner = other;
                if target_mass < lane_mass[other] {
                    break;
                }
                target_mass -= lane_mass[other];
            }
        }
        var token = lane_last[owner];
        var passed = 0.0;
        for (var i = owner; i < params.vocab_size; i += WG_X) {
            let logit = logits[row.source_at + i];
            if sortable(logit) >= key {
                passed += weight(row, logit);
                if target_mass < passed {
                    token = i;
                    break;
                }
            }
        }
        chosen = token;
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
    let scored = entry.z != NONE;
    let position = rows[entry.x].z;
    if position == NONE {
        if lane == 0u {
            sampled[sample] = Sampled(NONE, 0.0, 0.0, 0.0);
        }
        return;
    }

    let temperature = slots[slot].temperature;
    var row = Row(workgroup.x * params.logits_stride, MIN_LOGIT, 1.0);
    var token = NONE;
    var bad = false;
    for (var block = 0u; block < params.block_count; block++) {
        let partial = partials[workgroup.x * params.block_count + block];
        bad = bad || partial.w != 0u;
        if bitcast<f32>(partial.x) > row.largest {
            row.largest = bitcast<f32>(partial.x);
            token = partial.y;
        }
    }
    if !scored && temperature > 0.0 {
        row.inverse_temperature = 1.0 / temperature;
    }
    var sum = 0.0;
    for (var block = 0u; block < params.block_count; block++) {
        let partial = partials[workgroup.x * params.block_count + block];
        sum += bitcast<f32>(partial.z) * weight(row, bitcast<f32>(partial.x));
    }
    if bad || token == NONE {
        token = BAD_LOGITS;
    } else if scored {
        token = entry.z;
    } else if temperature > 0.0 {
        let uniform = token_uniform(slots[slot].seed_low, slots[slot].seed_high, position + 1u);
        token = draw(row, threshold(row, slot, lane), uniform, lane);
    }
    if lane == 0u {
        var logit = row.largest;
        if token < params.vocab_size {
            logit = logits[row.source_at + token];
        }
        sampled[sample] = Sampled(token, row.largest, sum, logit);
        if !scored {
            let next = position + 1u;
            slots[slot].token = min(token, params.vocab_size - 1u);
            slots[slot].position = next;
            let over = token == BAD_LOGITS || next + 1u >= slots[slot].position_limit || is_stop(slot, token);
            slots[slot].done = select(0u, 1u, over);
        }
    }
}
