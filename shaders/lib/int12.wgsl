//! use lib/columns
// Rows of activations as whole numbers of twelve bits, in blocks of 32 columns: x is about scale * code, code from -2047 to 2047.
//
// A block is eight pairs of words. The first word of pair i holds the upper eight bits of the codes of columns 4 i .. 4 i + 3, a
// signed byte each; the lower half of the second word their lower four bits, in the order of columns 4 i, 4 i + 2, 4 i + 1,
// 4 i + 3, so that two masks spread them over bytes. The upper half of the second word is about the block: in pairs 0 and 1 the
// halves of the scale (f32), in pairs 2 and 3 the sums of the codes of its first and of its second half, and zero in the others,
// but for rows that lack the factor of their norm: there pairs 4 and 5 hold the sum of the squares of the block before the norm.
// Mirror: src/quant/int12_rows.rs.

alias Int12Block = array<vec2<u32>, 8>;

const LARGEST_CODE: f32 = 2047.0;
// Blocks whose largest number is smaller count as zero: the inverse of their scale would leave f32.
const SMALLEST: f32 = 1e-30;

fn int12_codes(pair: vec2<u32>) -> vec4<i32> {
    let lower = vec4<i32>((vec4(pair.y) >> vec4(0u, 8u, 4u, 12u)) & vec4(15u));
    return (unpack4xI8(pair.x) << vec4(4u)) | lower;
}

// From the second words of pairs 0 and 1, or the sum of squares from those of pairs 4 and 5.
fn int12_number(first: u32, second: u32) -> f32 {
    return bitcast<f32>((first >> 16u) | (second & 0xffff0000u));
}

// From the second words of pairs 2 and 3.
fn int12_sums(third: u32, fourth: u32) -> vec2<f32> {
    return vec2(f32(bitcast<i32>(third) >> 16u), f32(bitcast<i32>(fourth) >> 16u));
}

// A block with a number that is not finite has zero codes and a scale that is not a number: it must stay seen in the logits.
// Told by bits, because WGSL may assume that there is no such number.
fn quantized(columns: ptr<function, Columns>) -> Int12Block {
    var largest = vec4(0u);
    for (var i = 0u; i < 8u; i++) {
        largest = max(largest, bitcast<vec4<u32>>((*columns)[i]) & vec4(0x7fffffffu));
    }
    let size_bits = max(max(largest.x, largest.y), max(largest.z, largest.w));
    let broken = size_bits >= 0x7f800000u;
    let size = bitcast<f32>(select(size_bits, 0u, broken));
    let there = size >= SMALLEST;
    let inverse = select(0.0, LARGEST_CODE / max(size, SMALLEST), there);
    var block: Int12Block;
    var sums: vec2<i32>;
    for (var i = 0u; i < 8u; i++) {
        let codes = select(vec4<i32>(round((*columns)[i] * inverse)), vec4(0), broken);
        let sum = codes.x + codes.y + codes.z + codes.w;
        if i < 4u {
            sums.x += sum;
        } else {
            sums.y += sum;
        }
        let lower = vec4<u32>(codes & vec4(15)) << vec4(0u, 8u, 4u, 12u);
        block[i] = vec2(pack4xI8(codes >> vec4(4u)), lower.x | lower.y | lower.z | lower.w);
    }
    let scale = select(bitcast<u32>(select(0.0, size / LARGEST_CODE, there)), 0x7fc00000u, broken);
    block[0].y |= scale << 16u;
    block[1].y |= scale & 0xffff0000u;
    block[2].y |= bitcast<u32>(sums.x) << 16u;
    block[3].y |= bitcast<u32>(sums.y) << 16u;
    return block;
}
