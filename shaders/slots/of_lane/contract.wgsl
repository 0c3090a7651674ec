// What lane `i` of eight holds, for a constant `i`. Only where workgroups are subgroups of eight lanes (see SPREAD).

fn of_lane(value: vec2<f32>, i: u32) -> vec2<f32> { return value; }
