//! By broadcasts, whose lane WGSL wants to be a constant.

fn of_lane(value: vec2<f32>, i: u32) -> vec2<f32> {
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
