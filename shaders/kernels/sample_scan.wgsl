//! kernel sample_scan
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params
// First pass over the logits of each wanted row: one workgroup a block of the vocabulary and row. Stores the block's largest
// logit with its lowest token id, and the sum of exp((logit - largest) / temperature).

@group(0) @binding(1) var<storage, read> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<u32>>;
@group(0) @binding(4) var<uniform> params: SampleParams;

var<workgroup> best_logit: array<f32, WG_X>;
var<workgroup> best_token: array<u32, WG_X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let sample = params.first_sample + workgroup.y;
    if sample >= inputs.header.sample_count {
        return;
    }
    let entry = inputs.entries[inputs.header.samples_at + sample];
    let scored = entry.z != NONE;
    var inverse_temperature = 1.0;
    if !scored && slots[entry.y].temperature > 0.0 {
        inverse_temperature = 1.0 / slots[entry.y].temperature;
    }
    let source_at = workgroup.y * params.logits_stride;
    let begin = workgroup.x * VOCAB_BLOCK;
    let end = min(begin + VOCAB_BLOCK, params.vocab_size);

    var largest = MIN_LOGIT;
    var token = NONE;
    var bad = 0.0;
    for (var i = begin + lane; i < end; i += WG_X) {
        let logit = logits[source_at + i];
        // Exponent all ones: an infinity or not a number, told by bits because WGSL may assume that neither exists.
        if (bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u {
            bad = 1.0;
        } else if logit > largest {
            largest = logit;
            token = i;
        }
    }
    best_logit[lane] = largest;
    best_token[lane] = token;
    let any_bad = reduce_max(bad, lane);
    // Every lane walks all lanes: few lanes, and no second tree to keep in step with the first.
    for (var other = 0u; other < WG_X; other++) {
        let logit = best_logit[other];
        let candidate = best_token[other];
        if logit > largest || (logit == largest && candidate < token) {
            largest = logit;
            token = candidate;
        }
    }
    var sum = 0.0;
    for (var i = begin + lane; i < end; i += WG_X) {
        sum += exp((logits[source_at + i] - largest) * inverse_temperature);
    }
    sum = reduce_add(sum, lane);
    if lane == 0u {
        let flags = select(0u, 1u, any_bad > 0.0);
        partials[workgroup.y * params.block_count + workgroup.x] =
            vec4(bitcast<u32>(largest), token, bitcast<u32>(sum), flags);
    }
}
