//! Draws: the cumulative distribution over ascending tokens is inverted at one random number. Reads `partials` and `params` of the
//! kernel.
//! use lib/sample_filters

var<workgroup> lane_mass: array<f32, WG_X>;
var<workgroup> owner_lane: u32;
var<workgroup> mass_before: f32;
var<workgroup> chosen: u32;

// Mass of the tokens of a block of the vocabulary.
fn block_mass(row: Row, block: u32) -> f32 {
    if block >= params.block_count || partials[row.partials_at + block].token == NONE {
        return 0.0;
    }
    return partials[row.partials_at + block].sum * weight(row, partials[row.partials_at + block].largest);
}

// Finds the lane in which the masses of the lanes, one after another, exceed `wanted`, and the mass before it. Where rounding
// leaves `wanted` beyond all of them it is the last lane whose mass the sum notices.
fn find_owner(mass: f32, wanted: f32, lane: u32) {
    workgroupBarrier();
    lane_mass[lane] = mass;
    workgroupBarrier();
    if lane == 0u {
        var sum = 0.0;
        for (var other = 0u; other < WG_X; other++) {
            let next = sum + lane_mass[other];
            if next > sum {
                owner_lane = other;
                mass_before = sum;
                if wanted < next {
                    break;
                }
            }
            sum = next;
        }
    }
    workgroupBarrier();
}

// The neighbouring tokens that a lane owns, of those from `begin` to `end`.
struct Share {
    begin: u32,
    end: u32,
}

fn share_of(begin: u32, end: u32, lane: u32) -> Share {
    let length = (end - begin + WG_X - 1u) / WG_X;
    return Share(begin + lane * length, min(begin + (lane + 1u) * length, end));
}

// Mass of its tokens at or above `key`.
fn share_mass(row: Row, key: u32, share: Share) -> f32 {
    var mass = 0.0;
    for (var i = share.begin; i < share.end; i++) {
        let logit = logit_of(row, i);
        if sortable(logit) >= key {
            mass += weight(row, logit);
        }
    }
    return mass;
}

// Draws among the tokens at or above `key` of all lanes' shares, whose masses are known: the first at which the mass exceeds
// `wanted`, by the same rule.
fn draw_within(row: Row, key: u32, share: Share, mass: f32, wanted: f32, lane: u32) -> u32 {
    find_owner(mass, wanted, lane);
    if lane == owner_lane {
        let rest = wanted - mass_before;
        var sum = 0.0;
        for (var i = share.begin; i < share.end; i++) {
            let logit = logit_of(row, i);
            if sortable(logit) >= key {
                let next = sum + weight(row, logit);
                if next > sum {
                    chosen = i;
                    if rest < next {
                        break;
                    }
                }
                sum = next;
            }
        }
    }
    workgroupBarrier();
    return chosen;
}

// Draws among all tokens that may come: first the block, by what the first pass knows of it.
fn draw_unfiltered(row: Row, wanted: f32, lane: u32) -> u32 {
    let share = (params.block_count + WG_X - 1u) / WG_X;
    var mass = 0.0;
    for (var i = 0u; i < share; i++) {
        mass += block_mass(row, lane * share + i);
    }
    find_owner(mass, wanted, lane);
    var rest = wanted - mass_before;
    var block = owner_lane * share;
    var before = 0.0;
    var sum = 0.0;
    for (var i = 0u; i < share; i++) {
        let next = sum + block_mass(row, owner_lane * share + i);
        if next > sum {
            block = owner_lane * share + i;
            before = sum;
            if rest < next {
                break;
            }
        }
        sum = next;
    }
    let begin = block * VOCAB_BLOCK;
    let own = share_of(begin, min(begin + VOCAB_BLOCK, row.limit), lane);
    let mass_of_own = share_mass(row, DROPPED_KEY + 1u, own);
    return draw_within(row, DROPPED_KEY + 1u, own, mass_of_own, rest - before, lane);
}

// Draws among the sorted candidates at or above `key`, of which there are `count`.
fn draw_sorted(key: u32, count: u32, uniform: f32, lane: u32) -> u32 {
    // Back into the order of tokens.
    for (var own = lane; own < count; own += WG_X) {
        if sorted_key[own] >= key {
            var before = 0u;
            for (var other = 0u; other < count && sorted_key[other] >= key; other++) {
                before += select(0u, 1u, sorted_token[other] < sorted_token[own]);
            }
            found_token[before] = sorted_token[own];
            // Masses travel as bits: the keys of what was gathered are no longer needed.
            found_key[before] = bitcast<u32>(candidate_mass[own]);
        }
    }
    workgroupBarrier();
    if lane == 0u {
        var survivors = 0u;
        var total = 0.0;
        for (var i = 0u; i < count && sorted_key[i] >= key; i++) {
            survivors += 1u;
            total += bitcast<f32>(found_key[i]);
        }
        let wanted = uniform * total;
        var sum = 0.0;
        for (var i = 0u; i < survivors; i++) {
            let next = sum + bitcast<f32>(found_key[i]);
            if next > sum {
                chosen = found_token[i];
                if wanted < next {
                    break;
                }
            }
            sum = next;
        }
    }
    workgroupBarrier();
    return chosen;
}
