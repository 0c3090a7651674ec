//! kernel attention
//! slot kv reduce rows_out of_lane queries
//! use lib/step_inputs lib/chunk lib/math
// Causal attention over paged KV for a tile of queries of one sequence: QUERIES rows times HEADS_PER_TILE of the query heads
// that share a key and value head. KV positions are taken in chunks of KV_CHUNK, counted from position 0.
//
// A query sees the WINDOW last positions up to its own. What lies before the window of a tile's first query is never read: its
// blocks may be somebody else's. Chunks and lanes keep their positions nevertheless, and what is masked adds nothing, so that a
// query gets the same bits from any tile.
//
// With DECODE a tile is one decode row, else it comes from the host's tile list. With SPLIT the workgroup computes one chunk
// and stores its partial result (attn_combine merges them); else it walks all chunks. The bits are the same.

@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> tables: array<u32>;

const OCTETS: u32 = HEAD_DIM / 8u;
const QUADS: u32 = HEAD_DIM / 4u;
// Rows are left in blocks only where these are whole.
const HEAD_BLOCKS: u32 = (HEAD_DIM + 31u) / 32u;
const GROUP: u32 = HEADS / KV_HEADS;
const HEAD_TILES: u32 = GROUP / HEADS_PER_TILE;
const TILE: u32 = QUERIES * HEADS_PER_TILE;
const QKV_STRIDE: u32 = (HEADS + 2u * KV_HEADS) * QUADS;

var<workgroup> scores: array<f32, TILE * KV_CHUNK>;
var<workgroup> sums: array<vec4<f32>, TILE * QUADS>;
var<workgroup> running: array<vec2<f32>, TILE>;  // maximum and normaliser so far
var<workgroup> factors: array<vec2<f32>, TILE>;

struct Tile {
    first_row: u32,
    query_count: u32,
    slot: u32,
    first_position: u32,
    kv_head: u32,
    first_head: u32,
}

fn query_head(tile: Tile, member: u32) -> u32 {
    return tile.first_head + member % HEADS_PER_TILE;
}

// Heads are counted through all rows.
fn member_head(tile: Tile, member: u32) -> u32 {
    return (tile.first_row + member / HEADS_PER_TILE) * HEADS + query_head(tile, member);
}

// The entry of the tile's key and value head at a position.
fn kv_entry(tile: Tile, position: u32) -> u32 {
    let block = tables[tile.slot * inputs.header.table_stride + (position >> 4u)];
    return (block * KV_HEADS + tile.kv_head) * 16u + (position & 15u);
}

// The first position of a chunk's round of lanes that holds position `first` of the chunk.
fn round_of(first: u32) -> u32 {
    return first / WG_X * WG_X;
}

alias Keys = array<Octet, POSITIONS>;
alias Products = array<vec4<f32>, TILE * POSITIONS>;

// Adds the products of octet `octet` of each query with that of each key.
fn add_products(products: ptr<function, Products>, keys_of: ptr<function, Keys>, tile: Tile, octet: u32) {
    for (var member = 0u; member < TILE; member++) {
        // Queries that a short tile lacks read its last one: past it the buffer may end.
        let row = tile.first_row + min(member / HEADS_PER_TILE, tile.query_count - 1u);
        let query = query_octet(row * QKV_STRIDE + query_head(tile, member) * QUADS + 2u * octet);
        for (var p = 0u; p < POSITIONS; p++) {
            let product = &(*products)[member * POSITIONS + p];
            *product = fma(query.high, (*keys_of)[p].high, fma(query.low, (*keys_of)[p].low, *product));
        }
    }
}

// scores[member][j] = scale * query . key, POSITIONS positions a lane at a time, for positions `first` to `length` of the chunk.
fn score_chunk(tile: Tile, start: u32, first: u32, length: u32, lane: u32) {
    for (var round = round_of(first) + lane; round < length; round += POSITIONS * WG_X) {
        var entries: array<u32, POSITIONS>;
        for (var p = 0u; p < POSITIONS; p++) {
            // Positions that are not there, or not seen, read one that is.
            entries[p] = kv_entry(tile, start + clamp(round + p * WG_X, first, length - 1u));
        }
        var products: Products;
        for (var pair = 0u; pair < OCTETS / 2u; pair++) {
            var even: Keys;
            var odd: Keys;
            for (var p = 0u; p < POSITIONS; p++) {
                let both = key_octets(entries[p], pair);
                even[p] = both[0];
                odd[p] = both[1];
            }
            add_products(&products, &even, tile, 2u * pair);
            add_products(&products, &odd, tile, 2u * pair + 1u);
        }
        if OCTETS % 2u == 1u {
            var last: Keys;
            for (var p = 0u; p < POSITIONS; p++) {
                last[p] = key_octet(entries[p], OCTETS - 1u);
            }
            add_products(&products, &last, tile, OCTETS - 1u);
        }
        for (var p = 0u; p < POSITIONS; p++) {
            let j = round + p * WG_X;
            if j < length {
                for (var member = 0u; member < TILE; member++) {
                    let query = member / HEADS_PER_TILE;
                    let position = tile.first_position + query;
                    let visible = j >= first && start + j <= position && position - (start + j) < WINDOW;
                    let product = products[member * POSITIONS + p];
                    var score = SCALE * ((product.x + product.y) + (product.z + product.w));
                    if CAP > 0.0 {
                        score = soft_cap(score, CAP);
                    }
                    scores[member * KV_CHUNK + j] = select(MASKED, score, visible);
                }
            }
        }
    }
}

// Turns scores into exp(score - maximum of the chunk) and prepares the merge of the chunk into what came before.
fn softmax_chunk(first: u32, length: u32, lane: u32) {
    for (var member = 0u; member < TILE; member++) {
        let row = member * KV_CHUNK;
        var maximum = MASKED;
        for (var j = round_of(first) + lane; j < length; j += WG_X) {
            maximum = max(maximum, scores[row + j]);
        }
        maximum = reduce_max(maximum, lane);
        var sum = 0.0;
        for (var j = round_of(first) + lane; j < length; j += WG_X) {
            let score = scores[row + j];
            // By select, not by exp of a huge negative number: in a chunk that is masked throughout, score - maximum is 0.
            let weight = select(0.0, exp(score - maximum), score > 0.5 * MASKED);
            scores[row + j] = weight;
            sum += weight;
        }
        sum = reduce_add(sum, lane);
        if lane == 0u {
            let before = running[member];
            let merging = merge_factors(before.x, maximum);
            factors[member] = merging;
            running[member] = vec2(max(before.x, maximum), merge_sum(before.y, sum, merging));
        }
    }
    workgroupBarrier();
}

alias Batch = array<vec4<f32>, ROW_BATCH>;
// Weights of the eight first and of the eight last positions of a block, a position of each a lane.
alias Weights = array<vec2<f32>, ROW_BATCH>;

// Adds the value in an octet of an entry, of position `j` of the chunk, to the rows of a batch.
fn weigh(low: ptr<function, Batch>, high: ptr<function, Batch>, first: u32, j: u32, entry: u32, octet: u32) {
    let value = value_octet(entry, octet);
    for (var b = 0u; b < ROW_BATCH; b++) {
        let weight = vec4(scores[(first + b) * KV_CHUNK + j]);
        (*low)[b] = fma(weight, value.low, (*low)[b]);
        (*high)[b] = fma(weight, value.high, (*high)[b]);
    }
}

// The same for position `i` of a block, whose weights the lanes hold and whose entries begin at `entry`.
fn weigh_spread(
    low: ptr<function, Batch>,
    high: ptr<function, Batch>,
    weights: ptr<function, Weights>,
    entry: u32,
    octet: u32,
    i: u32,
) {
    let value = value_octet(entry + i, octet);
    for (var b = 0u; b < ROW_BATCH; b++) {
        let halves = of_lane((*weights)[b], i & 7u);
        let weight = vec4(select(halves.x, halves.y, i >= 8u));
        (*low)[b] = fma(weight, value.low, (*low)[b]);
        (*high)[b] = fma(weight, value.high, (*high)[b]);
    }
}

// A whole block of 16 positions. Each lane loads the weights of two of them and hands them to the others.
fn weigh_block(
    low: ptr<function, Batch>,
    high: ptr<function, Batch>,
    first: u32,
    block: u32,
    entry: u32,
    octet: u32,
    lane: u32,
) {
    var weights: Weights;
    for (var b = 0u; b < ROW_BATCH; b++) {
        let from_score = (first + b) * KV_CHUNK + block + (lane & 7u);
        weights[b] = vec2(scores[from_score], scores[from_score + 8u]);
    }
    // Written out, so that each position is a constant.
    weigh_spread(low, high, &weights, entry, octet, 0u);
    weigh_spread(low, high, &weights, entry, octet, 1u);
    weigh_spread(low, high, &weights, entry, octet, 2u);
    weigh_spread(low, high, &weights, entry, octet, 3u);
    weigh_spread(low, high, &weights, entry, octet, 4u);
    weigh_spread(low, high, &weights, entry, octet, 5u);
    weigh_spread(low, high, &weights, entry, octet, 6u);
    weigh_spread(low, high, &weights, entry, octet, 7u);
    weigh_spread(low, high, &weights, entry, octet, 8u);
    weigh_spread(low, high, &weights, entry, octet, 9u);
    weigh_spread(low, high, &weights, entry, octet, 10u);
    weigh_spread(low, high, &weights, entry, octet, 11u);
    weigh_spread(low, high, &weights, entry, octet, 12u);
    weigh_spread(low, high, &weights, entry, octet, 13u);
    weigh_spread(low, high, &weights, entry, octet, 14u);
    weigh_spread(low, high, &weights, entry, octet, 15u);
}

// sums[member] = merge(sums[member], weights . values), eight elements of ROW_BATCH members a lane.
fn weigh_chunk(tile: Tile, start: u32, chunk_first: u32, length: u32, lane: u32) {
    const ITEMS = TILE / ROW_BATCH * OCTETS;
    // All lanes go round together; those that find nothing do the last item once more, and keep it to themselves.
    for (var base = 0u; base < ITEMS; base += WG_X) {
        let item = min(base + lane, ITEMS - 1u);
        let first = item / OCTETS * ROW_BATCH;
        let octet = item % OCTETS;
        var low: Batch;
        var high: Batch;
        for (var block = chunk_first / 16u * 16u; block < length; block += 16u) {
            let entry = kv_entry(tile, start + block);
            let count = min(16u, length - block);
            var j = chunk_first - min(chunk_first, block);
            if SPREAD && j == 0u && count == 16u {
                weigh_block(&low, &high, first, block, entry, octet, lane);
                continue;
            }
            // Four positions a round: lavapipe counts rounds (see kernels/attention.rs), and they cost time.
            for (; j + 4u <= count; j += 4u) {
                weigh(&low, &high, first, block + j, entry + j, octet);
                weigh(&low, &high, first, block + j + 1u, entry + j + 1u, octet);
                weigh(&low, &high, first, block + j + 2u, entry + j + 2u, octet);
                weigh(&low, &high, first, block + j + 3u, entry + j + 3u, octet);
            }
            for (; j < count; j++) {
                weigh(&low, &high, first, block + j, entry + j, octet);
            }
        }
        if base + lane < ITEMS {
            for (var b = 0u; b < ROW_BATCH; b++) {
                let to = (first + b) * QUADS + 2u * octet;
                sums[to] = merge(sums[to], low[b], factors[first + b]);
                sums[to + 1u] = merge(sums[to + 1u], high[b], factors[first + b]);
            }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let lane = local.x;
    var tile: Tile;
    if DECODE {
        if workgroup.x >= inputs.header.decode_count {
            return;
        }
        tile.first_row = workgroup.x;
        tile.query_count = 1u;
    } else {
        if workgroup.x >= inputs.header.tile_count {
            return;
        }
        let entry = inputs.entries[inputs.header.tiles_at + workgroup.x];
        tile.first_row = entry.x;
        tile.query_count = entry.y;
    }
    let row = rows[tile.first_row];
    if row.z == NONE {
        return;
    }
    tile.slot = row.y;
    tile.first_position = row.z;
    tile.kv_head = workgroup.y / HEAD_TILES;
    tile.first_head = tile.kv_head * GROUP + workgroup.y % HEAD_TILES * HEADS_PER_TILE;
    let context = tile.first_position + tile.query_count;
    var earliest = 0u;
    if WINDOW != NONE {
        earliest = tile.first_position - min(tile.first_position, WINDOW - 1u);
    }
    var chunk = earliest / KV_CHUNK;
    var chunks = (context + KV_CHUNK - 1u) / KV_CHUNK;
    if SPLIT {
        chunk += workgroup.z;
        if chunk >= chunks {
            return;
        }
        chunks = chunk + 1u;
    }

    for (var i = lane; i < TILE * QUADS; i += WG_X) {
        sums[i] = vec4(0.0);
    }
    if lane == 0u {
        for (var member = 0u; member < TILE; member++) {
            running[member] = vec2(MASKED, 0.0);
        }
    }
    workgroupBarrier();
    for (; chunk < chunks; chunk++) {
        let start = chunk * KV_CHUNK;
        let first = earliest - min(earliest, start);
        let length = min(KV_CHUNK, context - start);
        score_chunk(tile, start, first, length, lane);
        softmax_chunk(first, length, lane);
        weigh_chunk(tile, start, first, length, lane);
    }

    let members = tile.query_count * HEADS_PER_TILE;
    if BLOCKS {
        for (var i = lane; i < members * HEAD_BLOCKS; i += WG_X) {
            let member = i / HEAD_BLOCKS;
            var columns: Columns;
            for (var n = 0u; n < 8u; n++) {
                columns[n] = sums[i * 8u + n] / running[member].y;
            }
            write_block(member_head(tile, member) * HEAD_BLOCKS + i % HEAD_BLOCKS, &columns);
        }
        return;
    }
    for (var i = lane; i < members * QUADS; i += WG_X) {
        let member = i / QUADS;
        let head = member_head(tile, member);
        if SPLIT {
            let to = (head * workgroups.z + workgroup.z) * (QUADS + 1u);
            write_vector(to + i % QUADS, sums[i]);
            if i % QUADS == 0u {
                write_vector(to + QUADS, vec4(running[member], 0.0, 0.0));
            }
        } else {
            write_vector(head * QUADS + i % QUADS, sums[i] / running[member].y);
        }
    }
}
