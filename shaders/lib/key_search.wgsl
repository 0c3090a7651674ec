//! The key that enough tokens are at or above, counted from the likeliest down, found by histograms of the keys: 256 bins a pass,
//! so that four passes over a vocabulary do at the latest. What counts is the tokens' number, or their mass.
//!
//! Bins are whole numbers of 64 bits, so that a sum does not depend on the order in which lanes add to it.
//! use lib/sample_row

const BINS: u32 = 256u;
const BIN_BITS: u32 = 8u;
// A mass of one, in units of a bin's high word: 2^19 tokens of mass one fit, more than any vocabulary has, and with the low word a
// token is rounded to 2^-45.
const ONE: f32 = 8192.0;
const LOW_WORD: f32 = 4294967296.0;

var<workgroup> bin_high: array<atomic<u32>, BINS>;
var<workgroup> bin_low: array<atomic<u32>, BINS>;
var<workgroup> bin_found: u32;
var<workgroup> searched: vec2<u32>;

fn add_mass(bin: u32, mass: f32) {
    let scaled = mass * ONE;
    let whole = u32(scaled);
    let rest = u32((scaled - f32(whole)) * LOW_WORD);
    let before = atomicAdd(&bin_low[bin], rest);
    let carried = whole + select(0u, 1u, before + rest < before);
    if carried != 0u {
        atomicAdd(&bin_high[bin], carried);
    }
}

fn bin_amount(bin: u32) -> vec2<u32> {
    return vec2(atomicLoad(&bin_high[bin]), atomicLoad(&bin_low[bin]));
}

fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.y + b.y;
    return vec2(a.x + b.x + select(0u, 1u, low < b.y), low);
}

fn amount(value: vec2<u32>) -> f32 {
    return f32(value.x) + f32(value.y) / LOW_WORD;
}

// What of the tokens is counted: their mass, or only their number.
const BY_NUMBER: u32 = 0u;
const BY_MASS: u32 = 1u;

// Counts the tokens with keys from `first` to `last` in bins of 2^shift keys.
fn fill_bins(row: Row, first: u32, last: u32, shift: u32, by: u32, lane: u32) {
    for (var bin = lane; bin < BINS; bin += WG_X) {
        atomicStore(&bin_high[bin], 0u);
        atomicStore(&bin_low[bin], 0u);
    }
    workgroupBarrier();
    // A loop for each way: software adapters go through all of a loop's branches.
    if by == BY_MASS {
        for (var i = lane; i < row.limit; i += WG_X) {
            let logit = logit_of(row, i);
            let key = sortable(logit);
            if key >= first && key <= last {
                add_mass((key - first) >> shift, weight(row, logit));
            }
        }
    } else {
        for (var i = lane; i < row.limit; i += WG_X) {
            let key = sortable(logit_of(row, i));
            if key >= first && key <= last {
                atomicAdd(&bin_high[(key - first) >> shift], 1u);
            }
        }
    }
    workgroupBarrier();
}

// The largest key from `low` to `high`, which no token exceeds, that enough of the tokens from `low` on reach: `wanted` of them, or
// so many that they have the share `wanted` of the mass. If there are not so many, `low`.
fn key_reached_by(row: Row, low: u32, high: u32, by: u32, wanted: f32, lane: u32) -> u32 {
    // All lanes give the same; a uniform load says so to whoever checks that barriers are met by all.
    if lane == 0u {
        searched = vec2(low, high);
    }
    let bounds = workgroupUniformLoad(&searched);
    var first = bounds.x;
    var last = bounds.y;
    var shift = 0u;
    while ((last - first) >> shift) >= BINS {
        shift += 1u;
    }
    // Of the first lane: what is above `last`, and how much is enough, which a share says only after the first pass.
    var above = vec2(0u, 0u);
    var enough = wanted;
    var is_known = by == BY_NUMBER;
    while first < last {
        fill_bins(row, first, last, shift, by, lane);
        if lane == 0u {
            if !is_known {
                var total = vec2(0u, 0u);
                for (var bin = 0u; bin < BINS; bin++) {
                    total = plus(total, bin_amount(bin));
                }
                enough = wanted * amount(total);
                is_known = true;
            }
            var bin = (last - first) >> shift;
            for (; bin > 0u; bin--) {
                let next = plus(above, bin_amount(bin));
                if amount(next) >= enough {
                    break;
                }
                above = next;
            }
            bin_found = bin;
        }
        first += workgroupUniformLoad(&bin_found) << shift;
        last = first + min(last - first, (1u << shift) - 1u);
        shift -= min(shift, BIN_BITS);
    }
    return first;
}
