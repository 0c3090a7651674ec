//! What the sampler's passes share: parameters, what the first leaves for the second, what comes out. Mirror: src/kernels/sample.rs.

struct SampleParams {
    vocab_size: u32,
    logits_stride: u32,
    processed_at: u32,    // where rows of logits after the rules of requests begin, behind those of the model
    processed_stride: u32,
    block_count: u32,     // blocks of the vocabulary
    first_sample: u32,    // row 0 of the logits buffer
    partials_stride: u32, // from what the first pass reports of one row to the next: block_count, or 0 where rows share it
    reserved: u32,
}

// A block of the vocabulary falls into groups: every GROUP_COUNT-th token is of the same one. Of each the first pass reports the
// largest logit, so that the second reads few of the others.
const GROUP_COUNT: u32 = 64u;
const GROUP_TOKENS: u32 = 16u;
const VOCAB_BLOCK: u32 = GROUP_TOKENS * GROUP_COUNT;

// Of one block of the vocabulary and row.
struct Partial {
    largest: f32,         // after the request's own rules
    token: u32,           // the first that has it; NONE: none may come
    sum: f32,             // of exp((logit - largest) / temperature) over the tokens that may come
    bad: u32,             // 1: some logit is not finite
    raw_largest: f32,     // of the model's logits
    raw_sum: f32,         // of exp(logit - raw_largest)
    reserved: array<u32, 2>,
    groups: array<f32, GROUP_COUNT>,
}

struct Sampled {
    token: u32,           // NONE: the row had nothing to do; BAD_LOGITS or NOTHING_ALLOWED: why there is none
    largest: f32,         // of the model's logits; this and the next only where log-probabilities are wanted
    sum: f32,             // of exp(logit - largest)
    logit: f32,           // of the token, from the model
    rank: u32,            // 1 plus the number of likelier tokens; 0 if nobody asked
    key: u32,             // tokens that could be drawn are those whose logit, after the rules, is not below it
    path: u32,            // which way it was drawn
    reserved: u32,
}

const BAD_LOGITS: u32 = 0xfffffffeu;
const NOTHING_ALLOWED: u32 = 0xfffffffdu;

// Stands for the logit of a token that may not come. No other is as low.
const DROPPED: f32 = -3.4028234e38;
const LOWEST: f32 = -3.4e38;

// Order of floats as order of integers; zeros of both signs are equal.
fn sortable(value: f32) -> u32 {
    let bits = select(bitcast<u32>(value), 0u, value == 0.0);
    return bits ^ select(0x80000000u, 0xffffffffu, (bits & 0x80000000u) != 0u);
}

// The key of DROPPED; those of all tokens that may come are above.
const DROPPED_KEY: u32 = 0x00800000u;
