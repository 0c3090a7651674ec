//! Merging softmax partials of KV chunks. One formula, used wherever chunks meet, so that a query gets the same bits from
//! prefill (which walks its chunks) and from decode (which gives each chunk a workgroup and merges afterwards).
//!
//! Online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.

const KV_CHUNK: u32 = 256u;

// Stands for minus infinity, which WGSL does not have.
const MASKED: f32 = -1e30;

// Factors for what is there and for what is added.
fn merge_factors(maximum: f32, chunk_maximum: f32) -> vec2<f32> {
    let together = max(maximum, chunk_maximum);
    return vec2(exp(maximum - together), exp(chunk_maximum - together));
}

fn merge(there: vec4<f32>, added: vec4<f32>, factors: vec2<f32>) -> vec4<f32> {
    return fma(added, vec4(factors.y), there * factors.x);
}

fn merge_sum(there: f32, added: f32, factors: vec2<f32>) -> f32 {
    return fma(added, factors.y, there * factors.x);
}
