//! slot activation
// Stores activation(sums + bias).

@group(0) @binding(13) var<storage, read> bias: array<f32>;

fn finish(token: u32, row: u32, sums: vec4<f32>) {
    let at = token * params.out_stride + params.out_offset + row;
    for (var i = 0u; i < 4u; i++) {
        if row + 8u * i < params.row_count {
            out[at + 8u * i] = activate(sums[i] + bias[params.out_offset + row + 8u * i]);
        }
    }
}
