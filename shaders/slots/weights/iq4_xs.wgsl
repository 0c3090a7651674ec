//! IQ4_XS: 32 nibbles as in q4_0 that name one of sixteen levels; a signed scale of six bits, in units of a super-block's
//! f16. w = scale * level.

@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

struct Block { nibbles: vec4<u32>, scale: f32 }

fn load_block(group: u32, blocks: u32, block: u32, row: u32) -> Block {
    // Three words a super-block: the outer scale, then one byte for each block.
    let at = (group * (blocks / 8u) + block / 8u) * 96u + row;
    let outer = unpack2x16float(scales[at]).x;
    let bytes = scales[at + 32u + (block & 4u) * 8u];
    let inner = bitcast<i32>(bytes << (24u - 8u * (block & 3u))) >> 24u;
    return Block(codes[(group * blocks + block) * 32u + row], outer * f32(inner));
}

// As in iq4_nl.
fn levels(code: vec4<u32>) -> vec4<f32> {
    let x = vec4<f32>(code);
    var y = fma(vec4(0.00158604), x, vec4(0.0310864));
    y = fma(y, x, vec4(-1.37193));
    y = fma(y, x, vec4(24.1738));
    return round(fma(y, x, vec4(-126.567)));
}

fn decode4(block: Block, i: u32) -> vec4<f32> {
    let shift = select(0u, 4u, i >= 4u);
    return levels(unpack4xU8((block.nibbles[i & 3u] >> shift) & 0x0f0f0f0fu)) * block.scale;
}
