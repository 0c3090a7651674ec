//! slot weights codes batch
//! use lib/int12
// The same products as int12, with the same bits, for software adapters, where loads cost most and there is no instruction for
// four products: the eight lanes of a subgroup load a block of activations together, and hand each other its columns. Products
// and sums of codes are whole numbers below 2^24, which f32 holds exactly.

@group(0) @binding(1) var<storage, read> x: array<u64>;

var<private> squares: array<f32, TILE>;

// Here one lane always takes all segments.
fn add_squares(batch: Batch) {}

alias Sums = array<vec4<f32>, TILE>;
alias Shares = array<vec4<f32>, TILE>;

// The value of lane `i`, which WGSL wants to be a constant.
fn of_lane(value: vec4<f32>, i: u32) -> vec4<f32> {
    switch i {
        case 0u: { return subgroupBroadcast(value, 0u); }
        case 1u: { return subgroupBroadcast(value, 1u); }
        case 2u: { return subgroupBroadcast(value, 2u); }
        case 3u: { return subgroupBroadcast(value, 3u); }
        case 4u: { return subgroupBroadcast(value, 4u); }
        case 5u: { return subgroupBroadcast(value, 5u); }
        case 6u: { return subgroupBroadcast(value, 6u); }
        default: { return subgroupBroadcast(value, 7u); }
    }
}

// What a byte is worth where it stands in a word of codes that are never negative. Taking bytes out where they are costs less than
// moving them, and a power of two changes no bit of a product; the activations hold its inverse.
const PLACES = select(vec4(1.0, 0x1p-8, 0x1p-16, 0x1p-24), vec4(1.0), SIGNED);

fn widened(codes: u32) -> vec4<f32> {
    if SIGNED {
        return vec4<f32>(unpack4xI8(codes));
    }
    return vec4<f32>(bitcast<vec4<i32>>(vec4(codes) & vec4(0xffu, 0xff00u, 0xff0000u, 0x7f000000u)));
}

// Products of columns 4 i .. 4 i + 3, which lane `i` holds, in four rows.
fn add_codes(sums: ptr<function, Sums>, shares: ptr<function, Shares>, b0: Block, b1: Block, b2: Block, b3: Block, i: u32) {
    let w0 = widened(codes4(b0, i));
    let w1 = widened(codes4(b1, i));
    let w2 = widened(codes4(b2, i));
    let w3 = widened(codes4(b3, i));
    for (var t = 0u; t < TILE; t++) {
        let v = of_lane((*shares)[t], i);
        var sum = (*sums)[t];
        sum = fma(vec4(w0.x, w1.x, w2.x, w3.x), vec4(v.x), sum);
        sum = fma(vec4(w0.y, w1.y, w2.y, w3.y), vec4(v.y), sum);
        sum = fma(vec4(w0.z, w1.z, w2.z, w3.z), vec4(v.z), sum);
        sum = fma(vec4(w0.w, w1.w, w2.w, w3.w), vec4(v.w), sum);
        (*sums)[t] = sum;
    }
}

fn add_block(sums: ptr<function, Sums>, batch: Batch, group: u32, block: u32, lane: u32) {
    let rows = load_four(group, params.blocks, block, lane);
    let b0 = rows[0];
    let b1 = rows[1];
    let b2 = rows[2];
    let b3 = rows[3];
    var shares: Shares;
    var about: array<u32, TILE>;
    for (var t = 0u; t < TILE; t++) {
        let word = x[input_at(batch, t) + block * 8u + lane];
        let pair = vec2(u32(word), u32(word >> 32u));
        shares[t] = vec4<f32>(int12_codes(pair)) * PLACES;
        about[t] = pair.y;
    }
    var low: Sums;
    add_codes(&low, &shares, b0, b1, b2, b3, 0u);
    add_codes(&low, &shares, b0, b1, b2, b3, 1u);
    add_codes(&low, &shares, b0, b1, b2, b3, 2u);
    add_codes(&low, &shares, b0, b1, b2, b3, 3u);
    var high: Sums;
    if !HALVES {
        high = low;
    }
    add_codes(&high, &shares, b0, b1, b2, b3, 4u);
    add_codes(&high, &shares, b0, b1, b2, b3, 5u);
    add_codes(&high, &shares, b0, b1, b2, b3, 6u);
    add_codes(&high, &shares, b0, b1, b2, b3, 7u);
    for (var t = 0u; t < TILE; t++) {
        let scale = int12_number(subgroupBroadcast(about[t], 0u), subgroupBroadcast(about[t], 1u));
        if NORMED {
            squares[t] += int12_number(subgroupBroadcast(about[t], 4u), subgroupBroadcast(about[t], 5u));
        }
        let halves = int12_sums(subgroupBroadcast(about[t], 2u), subgroupBroadcast(about[t], 3u));
        var l: vec4<f32>;
        if HALVES {
            l = low[t];
        }
        let h = high[t];
        let term = vec4(
            block_term(b0, vec2(l.x, h.x), halves),
            block_term(b1, vec2(l.y, h.y), halves),
            block_term(b2, vec2(l.z, h.z), halves),
            block_term(b3, vec2(l.w, h.w), halves),
        );
        (*sums)[t] = fma(term, vec4(scale), (*sums)[t]);
    }
}
