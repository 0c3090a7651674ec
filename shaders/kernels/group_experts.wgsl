//! kernel group_experts
//! use lib/step_inputs lib/routes
// Makes tiles of up to TILE pairs that share an expert, so that a product reads an expert's weights once for all of them. One
// workgroup an expert; each counts the pairs of all experts to know where its own tiles begin. Pairs keep their order.

@group(0) @binding(1) var<storage, read> chosen: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> routes: array<u32>;

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> lane_counts: array<u32, WG_X>;

fn place_at(first_tile: u32, place: u32) -> u32 {
    return route_at(first_tile + place / TILE, TILE) + 1u + place % TILE;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let own = workgroup.x;
    let lane = local.x;
    for (var e = lane; e < EXPERTS; e += WG_X) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    let pairs = inputs.header.row_count * CHOSEN;
    let length = (pairs + WG_X - 1u) / WG_X;
    let begin = min(lane * length, pairs);
    let end = min(begin + length, pairs);
    var count = 0u;
    for (var pair = begin; pair < end; pair++) {
        let expert = min(chosen[pair].x, EXPERTS - 1u);
        atomicAdd(&counts[expert], 1u);
        count += select(0u, 1u, expert == own);
    }
    lane_counts[lane] = count;
    workgroupBarrier();
    var first_tile = 0u;
    for (var e = 0u; e < own; e++) {
        first_tile += (atomicLoad(&counts[e]) + TILE - 1u) / TILE;
    }
    var place = 0u;
    for (var before = 0u; before < lane; before++) {
        place += lane_counts[before];
    }
    for (var pair = begin; pair < end; pair++) {
        if min(chosen[pair].x, EXPERTS - 1u) == own {
            if place % TILE == 0u {
                routes[route_at(first_tile + place / TILE, TILE)] = own;
            }
            routes[place_at(first_tile, place)] = pair;
            place++;
        }
    }
    if lane == WG_X - 1u {
        // The last lane stands behind the expert's last pair.
        for (; place % TILE != 0u; place++) {
            routes[place_at(first_tile, place)] = NO_PAIR;
        }
        if own == EXPERTS - 1u {
            routes[0] = first_tile + place / TILE;
        }
    }
}
