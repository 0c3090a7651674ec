//! Reductions as trees in workgroup memory: no feature needed.

var<workgroup> reduce_scratch: array<f32, WG_X>;

fn reduce_add(value: f32, lane: u32) -> f32 {
    workgroupBarrier();
    reduce_scratch[lane] = value;
    for (var stride = WG_X / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            reduce_scratch[lane] += reduce_scratch[lane + stride];
        }
    }
    workgroupBarrier();
    return reduce_scratch[0];
}

fn reduce_max(value: f32, lane: u32) -> f32 {
    workgroupBarrier();
    reduce_scratch[lane] = value;
    for (var stride = WG_X / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            reduce_scratch[lane] = max(reduce_scratch[lane], reduce_scratch[lane + stride]);
        }
    }
    workgroupBarrier();
    return reduce_scratch[0];
}
