//! kernel sample_logprobs
//! slot reduce
//! use lib/step_inputs lib/seq_state lib/sample_params lib/candidates lib/key_search
// Third pass, one workgroup a wanted row that reports log-probabilities: the token's rank by the model's own logits, and the
// likeliest tokens, or all. Entries of (token, logit) stand behind the samples; the host makes log-probabilities of them.

@group(0) @binding(1) var<storage, read> slots: array<SeqState>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> results: array<u32>;
@group(0) @binding(4) var<uniform> params: SampleParams;

// Alternatives that are selected here; who wants more gets all.
const MAX_DEVICE_LOGPROBS: u32 = 64u;
// Words of a sample in the results, and the place of its rank.
const SAMPLE_WORDS: u32 = 8u;
const RANK_AT: u32 = 4u;

// Tokens whose key is above `key`, or at it with a lower id than `token`.
fn count_before(at: u32, key: u32, token: u32, lane: u32) -> u32 {
    var count = 0u;
    for (var i = lane; i < params.vocab_size; i += WG_X) {
        let own = sortable(logits[at + i]);
        count += select(0u, 1u, own > key || (own == key && i < token));
    }
    // Exact in f32: a vocabulary is far below 2^24.
    return u32(reduce_add(f32(count), lane));
}

fn store_entry(index: u32, token: u32, logit: f32) {
    results[2u * index] = token;
    results[2u * index + 1u] = bitcast<u32>(logit);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let sample = params.first_sample + workgroup.x;
    if sample >= inputs.header.sample_count {
        return;
    }
    let entry = inputs.entries[inputs.header.samples_at + sample];
    let token = results[sample * SAMPLE_WORDS];
    if entry.w == NONE || token >= params.vocab_size {
        return;
    }
    let wants = select(slots[entry.y].prompt_logprobs, slots[entry.y].logprobs, entry.z == NONE);
    let at = workgroup.x * params.logits_stride;
    let token_key = sortable(logits[at + token]);

    var likelier = 0u;
    var largest = 0u;
    for (var i = lane; i < params.vocab_size; i += WG_X) {
        let key = sortable(logits[at + i]);
        likelier += select(0u, 1u, key > token_key);
        largest = max(largest, key);
    }
    let rank = 1u + u32(reduce_add(f32(likelier), lane));
    if lane == 0u {
        results[sample * SAMPLE_WORDS + RANK_AT] = rank;
    }
    // As logprob_entries in src/sampling/row.rs.
    let count = wants - 1u;
    if count > MAX_DEVICE_LOGPROBS || count > params.vocab_size {
        for (var i = lane; i < params.vocab_size; i += WG_X) {
            store_entry(entry.w + i, i, logits[at + i]);
        }
    } else if count > 0u {
        var bound = nth_of_lanes(largest, count, lane);
        var last_equal = 0xffffffffu;
        for (var i = lane; i < params.vocab_size; i += WG_X) {
            let key = sortable(logits[at + i]);
            if key >= bound {
                gather(key, i);
            }
        }
        if sort_gathered(lane) > CANDIDATES {
            // So many equal ones that they have to be searched: the largest key that `count` tokens reach,
            let row = Row(at, 0u, params.vocab_size, 0.0, 1.0);
            bound = key_reached_by(row, bound, 0xffffffffu, BY_NUMBER, f32(count), lane);
            // and, of the tokens at it, the first ids that fill up the count.
            var low = 0u;
            var high = params.vocab_size;
            while low < high {
                let middle = low + (high - low) / 2u;
                if count_before(at, bound, middle, lane) >= count {
                    high = middle;
                } else {
                    low = middle + 1u;
                }
            }
            last_equal = low;
            // Makes room again.
            nth_of_lanes(largest, 1u, lane);
            for (var i = lane; i < params.vocab_size; i += WG_X) {
                let key = sortable(logits[at + i]);
                if key > bound || (key == bound && i < last_equal) {
                    gather(key, i);
                }
            }
            sort_gathered(lane);
        }
        for (var i = lane; i < count; i += WG_X) {
            store_entry(entry.w + i, sorted_token[i], logits[at + sorted_token[i]]);
        }
    }
}
