//! kernel rope_kv
//! slot kv_store qk_norm rope
// One workgroup a row and head. Query heads are normalised (if the model does) and rotated in place; key heads also go to
// the KV cache at the row's index, and value heads go there as they are. Rotation pairs element i with i + ROTARY_DIM / 2.

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> qkv: array<f32>;

const HALF: u32 = ROTARY_DIM / 2u;
const QUADS: u32 = HEAD_DIM / 4u;

struct Head {
    at: u32,              // first element in qkv
    key: bool,
    scale: f32,           // of its norm
    position: u32,
}

fn normed(head: Head, element: u32) -> f32 {
    return qkv[head.at + element] * head.scale * head_weight(head.key, element);
}

// An element after norm and rotation; those past the rotary part stay.
fn turned(head: Head, element: u32) -> f32 {
    let own = normed(head, element);
    if element >= ROTARY_DIM {
        return own;
    }
    let second = element >= HALF;
    let pair = select(element, element - HALF, second);
    let other = normed(head, select(pair + HALF, pair, second));
    let angle = turn(head.position, pair);
    return fma(own, angle.x, select(-(other * angle.y), other * angle.y, second));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    let index = workgroup.x;
    let row = rows[workgroup.y];
    if row.z == 0xffffffffu {
        return;
    }
    var head: Head;
    head.at = (workgroup.y * (HEADS + 2u * KV_HEADS) + index) * HEAD_DIM;
    head.key = index >= HEADS;
    head.position = row.z;
    let kv_head = (index - min(index, HEADS)) % KV_HEADS;
    let entry = ((row.w >> 4u) * KV_HEADS + kv_head) * 16u + (row.w & 15u);

    if index >= HEADS + KV_HEADS {
        for (var i = lane; i < QUADS; i += WG_X) {
            let at = head.at + 4u * i;
            keep_value(entry, i, vec4(qkv[at], qkv[at + 1u], qkv[at + 2u], qkv[at + 3u]));
        }
        finish_value(entry, lane);
        return;
    }
    var squares = 0.0;
    for (var i = lane; i < HEAD_DIM; i += WG_X) {
        squares = fma(qkv[head.at + i], qkv[head.at + i], squares);
    }
    head.scale = head_scale(squares, lane);
    if head.key {
        for (var i = lane; i < QUADS; i += WG_X) {
            let at = 4u * i;
            keep_key(entry, i, vec4(turned(head, at), turned(head, at + 1u), turned(head, at + 2u), turned(head, at + 3u)));
        }
        finish_key(entry, lane);
        return;
    }
    // In place: a lane reads both elements of a pair before it writes them.
    for (var i = lane; i < HALF; i += WG_X) {
        let first = turned(head, i);
        let second = turned(head, i + HALF);
        qkv[head.at + i] = first;
        qkv[head.at + i + HALF] = second;
    }
    for (var i = ROTARY_DIM + lane; i < HEAD_DIM; i += WG_X) {
        qkv[head.at + i] = normed(head, i);
    }
}
