//! Keys and values as signed bytes, with an f16 scale for each block of 32 elements: d = max |x| / 127, q = x / d to the nearest.
//! use lib/kv_q8_0

@group(0) @binding(4) var<storage, read_write> keys: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;

const BLOCKS_OF_HEAD: u32 = HEAD_DIM / 32u;
const LARGEST_CODE: f32 = 127.0;
const LARGEST_SCALE: f32 = 65504.0;

// The entry in work: a block's scale needs all of its elements.
var<workgroup> kept: array<vec4<f32>, CODE_WORDS>;

// The bits of the nearest f16, ties to even, of a number from 0 to the largest f16. pack2x16float may take either neighbour, and then
// every code would depend on the driver.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    // Below the smallest normal number f16 counts in steps of 2^-24.
    let small = u32(round(min(x, 1.0) * 16777216.0));
    return select((bits - 0x38000000u + 0xfffu + ((bits >> 13u) & 1u)) >> 13u, small, bits < 0x38800000u);
}

// The scale of a block, as f16. A block with a number that is not finite has one that is not a number, to be seen in the logits;
// told by bits, because WGSL may assume that there is no such number.
fn scale_bits(block: u32) -> u32 {
    var largest = vec4(0u);
    for (var i = 0u; i < 8u; i++) {
        largest = max(largest, bitcast<vec4<u32>>(kept[block * 8u + i]) & vec4(0x7fffffffu));
    }
    let bits = max(max(largest.x, largest.y), max(largest.z, largest.w));
    let broken = bits >= 0x7f800000u;
    let size = bitcast<f32>(select(bits, 0u, broken));
    let scale = min(size * (1.0 / LARGEST_CODE), LARGEST_SCALE);
    return select(half_bits(scale), 0x7e00u, broken);
}

// Divided by the scale as stored, so that its rounding costs nothing but the ends of the range.
fn codes(quad: u32) -> u32 {
    let bits = scale_bits(quad / 8u);
    let scale = unpack2x16float(bits).x;
    // Some drivers take the smallest ones for zero.
    let usable = bits != 0x7e00u && scale > 0.0;
    let inverse = 1.0 / select(1.0, scale, usable);
    let rounded = clamp(round(kept[quad] * inverse), vec4(-LARGEST_CODE), vec4(LARGEST_CODE));
    return select(0u, pack4xI8(vec4<i32>(rounded)), usable);
}

fn two_scales(word: u32) -> u32 {
    let second = 2u * word + 1u;
    let there = second < BLOCKS_OF_HEAD;
    return scale_bits(2u * word) | select(0u, scale_bits(select(0u, second, there)), there) << 16u;
}

fn keep_key(entry: u32, quad: u32, elements: vec4<f32>) {
    kept[quad] = elements;
}

fn keep_value(entry: u32, quad: u32, elements: vec4<f32>) {
    kept[quad] = elements;
}

fn finish_key(entry: u32, lane: u32) {
    workgroupBarrier();
    for (var quad = lane; quad < CODE_WORDS; quad += WG_X) {
        keys[codes_at(entry) + quad] = codes(quad);
    }
    for (var word = lane; word < SCALE_WORDS; word += WG_X) {
        keys[scales_at(entry) + word] = two_scales(word);
    }
}

fn finish_value(entry: u32, lane: u32) {
    workgroupBarrier();
    for (var quad = lane; quad < CODE_WORDS; quad += WG_X) {
        values[codes_at(entry) + quad] = codes(quad);
    }
    for (var word = lane; word < SCALE_WORDS; word += WG_X) {
        values[scales_at(entry) + word] = two_scales(word);
    }
}
