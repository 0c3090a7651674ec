//! kernel sample_pick
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params lib/sample_filters lib/sample_draws lib/rng
// Second pass, one workgroup a wanted row: picks the token (or takes the known one that is scored) and moves the slot on.

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

fn is_stop(slot: u32, token: u32) -> bool {
    for (var i = 0u; i < min(slots[slot].stop_count, 8u); i++) {
        if slots[slot].stops[i] == token {
            return true;
        }
    }
    return false;
}

struct Drawn {
    token: u32,
    key: u32,                  // the smallest that could be drawn
    path: u32,
}

// Draws from the tokens that survive the filters, at `uniform`. At least one may come.
fn draw(row: Row, state: SeqState, uniform: f32, lane: u32) -> Drawn {
    var total = 0.0;
    for (var block = lane; block < params.block_count; block += WG_X) {
        total += block_mass(row, block);
    }
    total = reduce_add(total, lane);
    if !has_filters(state, params.vocab_size) {
        return Drawn(draw_unfiltered(row, uniform * total, lane), DROPPED_KEY + 1u, UNFILTERED);
    }
    let lowest = min_p_key(row, state.min_p);
    // A few more where that is all it takes.
    let ranks = select(SORTED_RANKS, max(SORTED_RANKS, state.top_k), state.top_k <= MOST_RANKS);
    let candidates = gather_candidates(row, ranks, lane);
    let decided = decide(state, lowest, candidates, total, lane);
    if decided != 0u {
        return Drawn(draw_sorted(decided, candidates.count, uniform, lane), decided, SORTED);
    }
    let key = searched_threshold(row, state, lowest, lane);
    let share = share_of(0u, row.limit, lane);
    let mass = share_mass(row, key, share);
    let wanted = uniform * reduce_add(mass, lane);
    return Drawn(draw_within(row, key, share, mass, wanted, lane), key, SEARCHED);
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
    var row = Row(raw_at, workgroup.x * params.partials_stride, params.vocab_size, DROPPED, 1.0);
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
    let likeliest = atomicLoad(&first_token);
    var token = likeliest;
    var path = LARGEST;
    var key = sortable(row.largest);
    if atomicLoad(&any_bad) != 0u {
        token = BAD_LOGITS;
        path = GIVEN;
    } else if scored {
        token = entry.z;
        path = GIVEN;
    } else if likeliest == NONE {
        token = NOTHING_ALLOWED;
        path = GIVEN;
    } else if draws {
        let drawn = draw(row, state, token_uniform(state.seed_low, state.seed_high, position + 1u), lane);
        token = drawn.token;
        key = drawn.key;
        path = drawn.path;
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
