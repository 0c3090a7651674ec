//! slot batch kv_pair
//! use lib/listed_rows
// Heads, ready for attention. The matrix holds the query heads, the key heads and the value heads one after another. Rows of query
// and key heads that rotate are arranged so that the first sixteen of a group are elements of the first half of the rotary part, and
// the others those that they turn with. Queries are stored; keys and values go to the cache at the row's index.

@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> keys: array<KvPair>;
@group(0) @binding(5) var<storage, read_write> values: array<KvPair>;

const LEAVES: bool = false;

fn finish(member: u32, token: u32, row: u32, sums: vec4<f32>) {
    let listed = rows[token];
    if row >= params.row_count || listed.z == NOTHING {
        return;
    }
    let head = (params.out_offset + row) / HEAD_DIM;
    let within = (params.out_offset + row) % HEAD_DIM;
    var first = within;
    var second = within + 16u;
    var low = sums.xy;
    var high = sums.zw;
    if head < HEADS + KV_HEADS && within < ROTARY_DIM {
        first = within / 32u * 16u + within % 32u;
        second = first + ROTARY_DIM / 2u;
        // Cosine and sine for each of two pairs, from the table behind the rows.
        let turns = bitcast<vec4<f32>>(rows[params.turns_at + (listed.z * (ROTARY_DIM / 2u) + first) / 2u]);
        low = fma(sums.xy, turns.xz, -(sums.zw * turns.yw));
        high = fma(sums.zw, turns.xz, sums.xy * turns.yw);
    }
    if head < HEADS {
        let to = token * params.out_stride + head * HEAD_DIM;
        out[(to + first) / 2u] = low;
        out[(to + second) / 2u] = high;
        return;
    }
    // Cache layout: [block][kv head][token in block][element].
    let to = (((listed.w >> 4u) * KV_HEADS + (head - HEADS) % KV_HEADS) * 16u + (listed.w & 15u)) * HEAD_DIM;
    if head < HEADS + KV_HEADS {
        keys[(to + first) / 2u] = pack_pair(low);
        keys[(to + second) / 2u] = pack_pair(high);
    } else {
        values[(to + first) / 2u] = pack_pair(low);
        values[(to + second) / 2u] = pack_pair(high);
    }
}

fn leave(batch: Batch, first_group: u32, lane: u32) {}
