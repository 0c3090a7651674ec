//! slot kv_pair
// Elements by themselves, two at a time.

@group(0) @binding(4) var<storage, read_write> keys: array<KvPair>;
@group(0) @binding(5) var<storage, read_write> values: array<KvPair>;

fn keep_key(entry: u32, quad: u32, elements: vec4<f32>) {
    let to = entry * (HEAD_DIM / 2u) + 2u * quad;
    keys[to] = pack_pair(elements.xy);
    keys[to + 1u] = pack_pair(elements.zw);
}

fn keep_value(entry: u32, quad: u32, elements: vec4<f32>) {
    let to = entry * (HEAD_DIM / 2u) + 2u * quad;
    values[to] = pack_pair(elements.xy);
    values[to + 1u] = pack_pair(elements.zw);
}

fn finish_key(entry: u32, lane: u32) {}

fn finish_value(entry: u32, lane: u32) {}
