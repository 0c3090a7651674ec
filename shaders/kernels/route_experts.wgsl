//! kernel route_experts
//! use lib/step_inputs lib/routes
// For each token row the CHOSEN experts with the largest scores, ties by lower index, and their weights: a softmax over all
// experts or, with NORMALIZE, over the chosen. In the order of the experts. One workgroup a row. With DIRECT each pair is a tile
// of its own; else group_experts makes the tiles.

@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> chosen: array<vec2<u32>>;  // (expert, weight as bits)
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

var<workgroup> score: array<f32, EXPERTS>;
var<workgroup> share: array<f32, EXPERTS>;
var<workgroup> taken: array<u32, EXPERTS>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = workgroup.x;
    if row >= inputs.header.row_count {
        return;
    }
    for (var e = local.x; e < EXPERTS; e += WG_X) {
        score[e] = scores[row * EXPERTS + e];
    }
    workgroupBarrier();
    var largest = score[0];
    for (var e = 1u; e < EXPERTS; e++) {
        largest = max(largest, score[e]);
    }
    for (var e = local.x; e < EXPERTS; e += WG_X) {
        var better = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            let before = score[other] > score[e] || (score[other] == score[e] && other < e);
            better += select(0u, 1u, before);
        }
        taken[e] = select(0u, 1u, better < CHOSEN);
        share[e] = exp(score[e] - largest);
    }
    workgroupBarrier();
    // Every lane adds all of them in the same order.
    var total = 0.0;
    for (var e = 0u; e < EXPERTS; e++) {
        total += select(0.0, share[e], taken[e] == 1u || !NORMALIZE);
    }
    for (var e = local.x; e < EXPERTS; e += WG_X) {
        var place = 0u;
        for (var other = 0u; other < e; other++) {
            place += taken[other];
        }
        // Scores that are not numbers may leave more than CHOSEN.
        if taken[e] == 1u && place < CHOSEN {
            let pair = row * CHOSEN + place;
            chosen[pair] = vec2(e, bitcast<u32>(share[e] / total));
            if DIRECT {
                routes[route_at(pair, 1u)] = e;
                routes[route_at(pair, 1u) + 1u] = pair;
            }
        }
    }
    if DIRECT && row == 0u && local.x == 0u {
        routes[0] = inputs.header.row_count * CHOSEN;
    }
}
