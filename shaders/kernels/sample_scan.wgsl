//! kernel sample_scan
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params
// First pass over the logits of each wanted row: one workgroup a block of the vocabulary and row. Applies the rules of the
// request in the order of vLLM's V1 sampler, and stores what the second pass needs to know of the block.

@group(0) @binding(1) var<storage, read> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> side: array<u32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;
@group(0) @binding(5) var<storage, read_write> partials: array<Partial>;
@group(0) @binding(6) var<uniform> params: SampleParams;

// What the rules say about each token of the block.
var<workgroup> bias: array<f32, VOCAB_BLOCK>;
var<workgroup> seen: array<atomic<u32>, VOCAB_BLOCK>;          // times in the output, and IN_PROMPT
var<workgroup> dropped: array<atomic<u32>, VOCAB_BLOCK / 32u>; // a bit each
var<workgroup> first_token: atomic<u32>;
var<workgroup> bad: atomic<u32>;

const IN_PROMPT: u32 = 0x80000000u;

fn drop(token: u32, begin: u32) {
    let place = token - begin;
    if place < VOCAB_BLOCK {
        atomicOr(&dropped[place >> 5u], 1u << (place & 31u));
    }
}

// Whether the last `count` tokens before `end` are those at `word`.
fn ends_with(end: u32, word: u32, count: u32) -> bool {
    for (var i = 0u; i < count; i++) {
        if side[end - count + i] != side[word + i] {
            return false;
        }
    }
    return true;
}

// Gathers the rules for the block from `begin` on, for a row whose input token has `position`.
fn gather_rules(slot: u32, position: u32, begin: u32, lane: u32) {
    let region = slot * inputs.header.side_stride;
    let flags = slots[slot].flags;
    for (var i = lane; i < VOCAB_BLOCK; i += WG_X) {
        bias[i] = 0.0;
        atomicStore(&seen[i], 0u);
    }
    for (var i = lane; i < VOCAB_BLOCK / 32u; i += WG_X) {
        var allowed = 0xffffffffu;
        if (flags & HAS_MASK) != 0u {
            let word = begin / 32u + i;
            allowed = 0u;
            if word * 32u < params.vocab_size {
                allowed = side[region + inputs.header.mask_at + word];
            }
        }
        atomicStore(&dropped[i], ~allowed);
    }
    workgroupBarrier();

    let known = position + 1u;
    let prompt_len = min(slots[slot].prompt_len, known);
    let output_count = known - prompt_len;
    if has_penalties(slots[slot]) {
        // Only the repetition penalty looks at the prompt.
        let first = select(0u, prompt_len, slots[slot].repetition_penalty == 1.0);
        for (var i = first + lane; i < known; i += WG_X) {
            let place = side[region + i] - begin;
            if place < VOCAB_BLOCK {
                if i < prompt_len {
                    atomicOr(&seen[place], IN_PROMPT);
                } else {
                    atomicAdd(&seen[place], 1u);
                }
            }
        }
    }
    if (flags & HAS_LISTS) != 0u {
        var at = region + inputs.header.lists_at;
        let bias_count = side[at];
        let stop_count = side[at + 1u];
        let word_count = side[at + 2u];
        at += 3u;
        for (var i = lane; i < bias_count; i += WG_X) {
            let place = side[at + 2u * i] - begin;
            if place < VOCAB_BLOCK {
                bias[place] = bitcast<f32>(side[at + 2u * i + 1u]);
            }
        }
        at += 2u * bias_count;
        if output_count < slots[slot].min_tokens {
            for (var i = lane; i < stop_count; i += WG_X) {
                drop(side[at + i], begin);
            }
        }
        at += stop_count;
        // Words follow one another, each behind its length; lanes take turns.
        for (var word = 0u; word < word_count; word++) {
            let length = side[at];
            if word % WG_X == lane && length > 0u && length - 1u <= output_count {
                let last = side[at + length];
                if last - begin < VOCAB_BLOCK && ends_with(region + known, at + 1u, length - 1u) {
                    drop(last, begin);
                }
            }
            at += 1u + length;
        }
    }
    workgroupBarrier();
}

// All ones in infinities and in what is not a number: told by bits, because WGSL may assume that neither exists.
const EXPONENT: u32 = 0x7f800000u;

fn exponent_bits(value: f32) -> u32 {
    return bitcast<u32>(value) & EXPONENT;
}

// The logit of the token at `place` of the block after the rules.
fn apply_rules(slot: u32, raw: f32, place: u32) -> f32 {
    if ((atomicLoad(&dropped[place >> 5u]) >> (place & 31u)) & 1u) != 0u {
        return DROPPED;
    }
    var logit = raw + bias[place];
    let times = atomicLoad(&seen[place]);
    if times != 0u {
        let penalty = slots[slot].repetition_penalty;
        logit = select(logit * penalty, logit / penalty, logit > 0.0);
        let count = times & ~IN_PROMPT;
        logit -= slots[slot].frequency_penalty * f32(count);
        logit -= select(0.0, slots[slot].presence_penalty, count > 0u);
    }
    // Neither DROPPED nor beyond what a float holds.
    return clamp(logit, LOWEST, -LOWEST);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let sample = params.first_sample + workgroup.y;
    if sample >= inputs.header.sample_count {
        return;
    }
    let entry = inputs.entries[inputs.header.samples_at + sample];
    let slot = entry.y;
    let position = rows[entry.x].z;
    if position == NONE {
        return;
    }
    let scored = entry.z != NONE;
    let temperature = slots[slot].temperature;
    let rules = !scored && has_rules(slots[slot]);
    let draws = !scored && temperature > 0.0;
    // The model's own distribution is for those who ask.
    let raw = scored || entry.w != NONE;

    let source_at = workgroup.y * params.logits_stride;
    // Where the logits to draw from are.
    let draw_at = select(source_at, params.processed_at + workgroup.y * params.processed_stride, rules);
    let begin = workgroup.x * VOCAB_BLOCK;
    let end = min(begin + VOCAB_BLOCK, params.vocab_size);
    let limit = select(min(end, slots[slot].token_limit), end, scored);
    let partial = workgroup.y * params.partials_stride + workgroup.x;
    if lane == 0u {
        atomicStore(&first_token, NONE);
        atomicStore(&bad, 0u);
    }
    workgroupBarrier();
    if rules {
        gather_rules(slot, position, begin, lane);
    }

    var largest = DROPPED;
    var token = NONE;
    var raw_largest = DROPPED;
    var exponent = 0u;
    // A loop for each kind of row: software adapters go through all of a loop's branches.
    if rules {
        for (var i = begin + lane; i < limit; i += WG_X) {
            let from_model = logits[source_at + i];
            exponent = max(exponent, exponent_bits(from_model));
            raw_largest = max(raw_largest, from_model);
            let logit = apply_rules(slot, from_model, i - begin);
            logits[draw_at + i] = logit;
            if logit > largest {
                largest = logit;
                token = i;
            }
        }
    } else {
        for (var i = begin + lane; i < limit; i += WG_X) {
            let logit = logits[source_at + i];
            exponent = max(exponent, exponent_bits(logit));
            if logit > largest {
                largest = logit;
                token = i;
            }
        }
        raw_largest = largest;
    }
    // Padding of the vocabulary, which counts where the model itself is asked.
    for (var i = max(begin, limit) + lane; i < end; i += WG_X) {
        exponent = max(exponent, exponent_bits(logits[source_at + i]));
        raw_largest = max(raw_largest, logits[source_at + i]);
    }
    if exponent == EXPONENT {
        atomicOr(&bad, 1u);
    }
    let own_largest = largest;
    largest = reduce_max(largest, lane);
    if own_largest == largest && token != NONE {
        atomicMin(&first_token, token);
    }
    var sum = 0.0;
    if draws {
        let inverse_temperature = 1.0 / temperature;
        // Group by group; what this lane reads of processed logits it has written itself.
        for (var group = lane; group < GROUP_COUNT; group += WG_X) {
            var group_largest = DROPPED;
            for (var i = begin + group; i < limit; i += GROUP_COUNT) {
                let logit = logits[draw_at + i];
                group_largest = max(group_largest, logit);
                if logit > DROPPED {
                    sum += exp((logit - largest) * inverse_temperature);
                }
            }
            partials[partial].groups[group] = group_largest;
        }
        sum = reduce_add(sum, lane);
    }
    var raw_sum = 0.0;
    if raw {
        raw_largest = reduce_max(raw_largest, lane);
        for (var i = begin + lane; i < end; i += WG_X) {
            raw_sum += exp(logits[source_at + i] - raw_largest);
        }
        raw_sum = reduce_add(raw_sum, lane);
    }
    workgroupBarrier();
    if lane == 0u {
        partials[partial].largest = largest;
        partials[partial].token = atomicLoad(&first_token);
        partials[partial].sum = sum;
        partials[partial].bad = atomicLoad(&bad);
        partials[partial].raw_largest = raw_largest;
        partials[partial].raw_sum = raw_sum;
    }
}
