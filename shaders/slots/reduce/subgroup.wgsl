//! Reductions as one subgroup operation, for workgroups that are exactly one subgroup.

fn reduce_add(value: f32, lane: u32) -> f32 {
    workgroupBarrier();
    return subgroupAdd(value);
}

fn reduce_max(value: f32, lane: u32) -> f32 {
    workgroupBarrier();
    return subgroupMax(value);
}
