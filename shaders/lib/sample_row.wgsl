//! One wanted row. Reads `logits` of the kernel.
//! use lib/sample_params

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
