//! A few of the largest of many keys, gathered and sorted in workgroup memory. Keys are those of `sortable`.
//!
//! A lower bound comes first: the n-th largest of one key a lane. At least n keys reach it, so the n largest of all do, and where
//! lanes split the keys evenly hardly more. Whether too many do depends on the keys alone.

var<workgroup> lane_key: array<u32, WG_X>;
var<workgroup> bound_found: u32;
var<workgroup> found_count: atomic<u32>;
var<workgroup> found_key: array<u32, CANDIDATES>;
var<workgroup> found_token: array<u32, CANDIDATES>;
var<workgroup> sorted_key: array<u32, CANDIDATES>;
var<workgroup> sorted_token: array<u32, CANDIDATES>;

// The `rank`-th largest (from 1, at most WG_X) of the lanes' keys. Makes room for gathering.
fn nth_of_lanes(key: u32, rank: u32, lane: u32) -> u32 {
    workgroupBarrier();
    lane_key[lane] = key;
    if lane == 0u {
        atomicStore(&found_count, 0u);
    }
    workgroupBarrier();
    var before = 0u;
    for (var other = 0u; other < WG_X; other++) {
        let larger = lane_key[other] > key || (lane_key[other] == key && other < lane);
        before += select(0u, 1u, larger);
    }
    if before == rank - 1u {
        bound_found = key;
    }
    workgroupBarrier();
    return bound_found;
}

// Adds a key. More than CANDIDATES are counted, but not kept.
fn gather(key: u32, token: u32) {
    let at = atomicAdd(&found_count, 1u);
    if at < CANDIDATES {
        found_key[at] = key;
        found_token[at] = token;
    }
}

// Sorts what was gathered: largest first, lower tokens first where equal. The number of keys, which is above CANDIDATES if there
// was not room for all; nothing is sorted then.
fn sort_gathered(lane: u32) -> u32 {
    workgroupBarrier();
    let count = atomicLoad(&found_count);
    if count <= CANDIDATES {
        for (var own = lane; own < count; own += WG_X) {
            let key = found_key[own];
            let token = found_token[own];
            var before = 0u;
            for (var other = 0u; other < count; other++) {
                let larger = found_key[other] > key || (found_key[other] == key && found_token[other] < token);
                before += select(0u, 1u, larger);
            }
            sorted_key[before] = key;
            sorted_token[before] = token;
        }
    }
    workgroupBarrier();
    return count;
}
