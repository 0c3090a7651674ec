//! State of one slot, which lives on the device between submissions. Mirror: src/layout/inputs.rs.

struct SeqState {
    token: u32,           // next input token
    position: u32,        // its position: all KV before it is valid
    position_limit: u32,  // index of the first token that must not be generated
    done: u32,            // 1 after the last token
    temperature: f32,     // 0: greedy
    top_k: u32,           // 0: off
    top_p: f32,           // 1: off
    min_p: f32,           // 0: off
    seed_low: u32,
    seed_high: u32,
    stop_count: u32,
    reserved: u32,
    stops: array<u32, 8>,
}
