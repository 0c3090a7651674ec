//! kernel rope_kv
//! slot kv qk_norm
// One workgroup a row and head. Query heads are normalised (if the model does) and rotated in place; key heads also go to
// the KV cache at the row's index, and value heads go there as they are. Rotation pairs element i with i + ROTARY_DIM / 2.

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> cos_sin: array<vec2<f32>>;  // [position][ROTARY_DIM / 2]
@group(0) @binding(3) var<storage, read_write> qkv: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> keys: array<KvPair>;
@group(0) @binding(5) var<storage, read_write> values: array<KvPair>;

const PAIRS: u32 = HEAD_DIM / 2u;
const ROTARY_PAIRS: u32 = ROTARY_DIM / 4u;

fn normalised(pair: vec2<f32>, at: u32, scale: f32, key: bool) -> vec2<f32> {
    return pair * scale * vec2(head_weight(key, 2u * at), head_weight(key, 2u * at + 1u));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let head = workgroup.x;
    let row = rows[workgroup.y];
    if row.z == 0xffffffffu {
        return;
    }
    let source_at = (workgroup.y * (HEADS + 2u * KV_HEADS) + head) * PAIRS;
    // Cache layout: [block][kv head][token in block][element].
    let kv_head = (head - min(head, HEADS)) % KV_HEADS;
    let to = (((row.w >> 4u) * KV_HEADS + kv_head) * 16u + (row.w & 15u)) * PAIRS;

    if head >= HEADS + KV_HEADS {
        for (var i = lane; i < PAIRS; i += WG_X) {
            values[to + i] = pack_pair(qkv[source_at + i]);
        }
        return;
    }
    let key = head >= HEADS;
    var squares = 0.0;
    for (var i = lane; i < PAIRS; i += WG_X) {
        squares += dot(qkv[source_at + i], qkv[source_at + i]);
    }
    let scale = head_scale(squares, lane);
    for (var i = lane; i < PAIRS - ROTARY_PAIRS; i += WG_X) {
        if i < ROTARY_PAIRS {
            let first = normalised(qkv[source_at + i], i, scale, key);
            let second = normalised(qkv[source_at + i + ROTARY_PAIRS], i + ROTARY_PAIRS, scale, key);
            let turn = row.z * (ROTARY_DIM / 2u) + 2u * i;
            let cosine = vec2(cos_sin[turn].x, cos_sin[turn + 1u].x);
            let sine = vec2(cos_sin[turn].y, cos_sin[turn + 1u].y);
            let rotated_first = fma(first, cosine, -(second * sine));
            let rotated_second = fma(second, cosine, first * sine);
            if key {
                keys[to + i] = pack_pair(rotated_first);
                keys[to + i + ROTARY_PAIRS] = pack_pair(rotated_second);
            } else {
                qkv[source_at + i] = rotated_first;
                qkv[source_at + i + ROTARY_PAIRS] = rotated_second;
            }
        } else {
            // Past the rotary part, elements stay.
            let at = i + ROTARY_PAIRS;
            let plain = normalised(qkv[source_at + at], at, scale, key);
            if key {
                keys[to + at] = pack_pair(plain);
            } else {
                qkv[source_at + at] = plain;
            }
        }
    }
}
