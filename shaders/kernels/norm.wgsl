//! kernel norm
//! slot reduce norm rows_out
//! use lib/step_inputs
// Norm of each row, one workgroup a row: out = (x - mean) * weight / sqrt(mean((x - mean)^2) + eps) + bias, where a
// root-mean-square norm has neither mean nor bias. With GATHER, row i of the output is the i-th row whose logits are wanted.

struct NormParams {
    width: u32,           // in vectors of four
    eps: f32,
    first_sample: u32,
    reserved: u32,
}

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: NormParams;

fn folded(sums: vec4<f32>) -> f32 {
    return (sums.x + sums.y) + (sums.z + sums.w);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let lane = local.x;
    var source = workgroup.x;
    if GATHER {
        let sample = params.first_sample + workgroup.x;
        if sample >= inputs.header.sample_count {
            return;
        }
        source = inputs.entries[inputs.header.samples_at + sample].x;
    } else if source >= inputs.header.row_count {
        return;
    }
    let source_at = source * params.width;
    let count = f32(params.width * 4u);
    var mean = vec4(0.0);
    if CENTERED {
        var sums = vec4(0.0);
        for (var i = lane; i < params.width; i += WG_X) {
            sums += x[source_at + i];
        }
        mean = vec4(reduce_add(folded(sums), lane) / count);
    }
    var squares = vec4(0.0);
    for (var i = lane; i < params.width; i += WG_X) {
        let value = x[source_at + i] - mean;
        squares = fma(value, value, squares);
    }
    let scale = inverseSqrt(reduce_add(folded(squares), lane) / count + params.eps);
    for (var block = lane; block < params.width / 8u; block += WG_X) {
        var columns: Columns;
        for (var n = 0u; n < 8u; n++) {
            let i = block * 8u + n;
            let value = (x[source_at + i] - mean) * scale * weight[i];
            if CENTERED {
                columns[n] = value + norm_bias(i);
            } else {
                columns[n] = value;
            }
        }
        write_block(workgroup.x * (params.width / 8u) + block, &columns);
    }
}
