//! kernel peak
// What a device can do at best, for rooflines: multiply-adds in registers, dot products of packed bytes, or one pass over
// memory. `source` holds the factor and the addend where nothing else is read, so that no compiler can know them.

const MULTIPLY_ADD = 0u;
const DOT = 1u;
const READ = 2u;

@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<u32>>;

// Twelve sums: enough to fill pipelines four cycles deep in two ports, few enough for sixteen registers.
fn multiply_add(lane: u32) -> vec4<u32> {
    let factor = vec4(bitcast<f32>(source[0].x));
    let addend = vec4(bitcast<f32>(source[0].y));
    var a = vec4(f32(lane & 7u));
    var b = a + 1.0;
    var c = a + 2.0;
    for (var round = 0u; round < ROUNDS; round++) {
        for (var i = 0u; i < UNROLL; i++) {
            a = fma(a, factor, addend);
            b = fma(b, factor, addend);
            c = fma(c, factor, addend);
        }
    }
    return vec4<u32>(a + b + c);
}

fn dots(a: vec4<i32>, factor: u32) -> vec4<i32> {
    let w = bitcast<vec4<u32>>(a);
    return a + vec4(dot4I8Packed(w.x, factor), dot4I8Packed(w.y, factor), dot4I8Packed(w.z, factor), dot4I8Packed(w.w, factor));
}

fn dot_products(lane: u32) -> vec4<u32> {
    let factor = source[0].z;
    var a = vec4(i32(lane & 7u));
    var b = a + 1;
    var c = a + 2;
    for (var round = 0u; round < ROUNDS; round++) {
        for (var i = 0u; i < UNROLL; i++) {
            a = dots(a, factor);
            b = dots(b, factor);
            c = dots(c, factor);
        }
    }
    return bitcast<vec4<u32>>(a + b + c);
}

// A workgroup reads a stretch of its own, its lanes neighbouring vectors of it.
fn pass_over(workgroup: u32, lane: u32) -> vec4<u32> {
    var sum = vec4(0u);
    let first = workgroup * WG_X * ROUNDS * UNROLL + lane;
    for (var round = 0u; round < ROUNDS; round++) {
        for (var i = 0u; i < UNROLL; i++) {
            sum += source[first + (round * UNROLL + i) * WG_X];
        }
    }
    return sum;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let at = workgroup.x * WG_X + local.x;
    switch MODE {
        case MULTIPLY_ADD: { out[at] = multiply_add(at); }
        case DOT: { out[at] = dot_products(at); }
        default: { out[at] = pass_over(workgroup.x, local.x); }
    }
}
