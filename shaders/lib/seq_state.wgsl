//! State of one slot, which lives on the device between submissions. Mirror: src/layout/inputs.rs.

struct SeqState {
    token: u32,           // next input token
    position: u32,        // its position: all KV before it is valid
    position_limit: u32,  // index of the first token that must not be generated
    done: u32,            // 1 after the last token
    prompt_len: u32,      // tokens of the prompt
    reserved_words: array<u32, 3>,
    temperature: f32,     // 0: greedy
    top_k: u32,           // 0: off
    top_p: f32,           // 1: off
    min_p: f32,           // 0: off
    seed_low: u32,
    seed_high: u32,
    stop_count: u32,
    flags: u32,
    stops: array<u32, 8>,
    repetition_penalty: f32, // 1: off
    presence_penalty: f32,   // 0: off
    frequency_penalty: f32,  // 0: off
    min_tokens: u32,         // outputs before which the early stops cannot come
    token_limit: u32,        // only ids below it are sampled
    logprobs: u32,           // alternatives to report, plus one; 0: none; NONE: all
    prompt_logprobs: u32,    // the same for scored tokens
    reserved: u32,
}

// Flags, as in src/sampling/row.rs.
const KEEPS_HISTORY: u32 = 1u;  // the side buffer has the tokens so far
const HAS_LISTS: u32 = 2u;      // it has lists
const HAS_MASK: u32 = 4u;       // it has a mask of the tokens that may come

fn has_penalties(state: SeqState) -> bool {
    return state.repetition_penalty != 1.0 || state.presence_penalty != 0.0 || state.frequency_penalty != 0.0;
}

// Whether the logits of the slot's tokens are changed before anything is drawn from them.
fn has_rules(state: SeqState) -> bool {
    return (state.flags & (HAS_LISTS | HAS_MASK)) != 0u || has_penalties(state);
}

// Whether a filter takes tokens out after the temperature.
fn has_filters(state: SeqState, vocab_size: u32) -> bool {
    return state.min_p > 0.0 || state.top_p < 1.0 || (state.top_k > 0u && state.top_k < vocab_size);
}
