//! All WGSL files, embedded. `OCTAVO_SHADER_DIR` reads them from a folder instead, for work on shaders.

use crate::error::{Error, Result};
use std::borrow::Cow;

macro_rules! embed {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../shaders/", $path)))),*]
    };
}

/// Path below `shaders/`, and text. A test walks the folder and fails if a file is missing here.
static SOURCES: &[(&str, &str)] = embed![
    "kernels/act_mul.wgsl",
    "kernels/attention.wgsl",
    "kernels/attn_combine.wgsl",
    "kernels/combine_experts.wgsl",
    "kernels/embed.wgsl",
    "kernels/group_experts.wgsl",
    "kernels/matmul.wgsl",
    "kernels/matmul_units.wgsl",
    "kernels/norm.wgsl",
    "kernels/norm_add.wgsl",
    "kernels/peak.wgsl",
    "kernels/qk_norm.wgsl",
    "kernels/quantize.wgsl",
    "kernels/resolve.wgsl",
    "kernels/rope_kv.wgsl",
    "kernels/route_experts.wgsl",
    "kernels/sample_logprobs.wgsl",
    "kernels/sample_pick.wgsl",
    "kernels/sample_scan.wgsl",
    "kernels/update.wgsl",
    "lib/candidates.wgsl",
    "lib/chunk.wgsl",
    "lib/columns.wgsl",
    "lib/each_row.wgsl",
    "lib/int12.wgsl",
    "lib/key_search.wgsl",
    "lib/kv_q8_0.wgsl",
    "lib/listed_rows.wgsl",
    "lib/math.wgsl",
    "lib/octet.wgsl",
    "lib/own_rows.wgsl",
    "lib/rng.wgsl",
    "lib/routes.wgsl",
    "lib/sample_draws.wgsl",
    "lib/sample_filters.wgsl",
    "lib/sample_params.wgsl",
    "lib/sample_row.wgsl",
    "lib/scale_word.wgsl",
    "lib/seq_state.wgsl",
    "lib/step_inputs.wgsl",
    "lib/wide.wgsl",
    "slots/activation/gelu_tanh.wgsl",
    "slots/activation/silu.wgsl",
    "slots/arithmetic/f32.wgsl",
    "slots/arithmetic/int12.wgsl",
    "slots/arithmetic/int12_spread.wgsl",
    "slots/batch/experts.wgsl",
    "slots/batch/listed.wgsl",
    "slots/batch/rows.wgsl",
    "slots/batch/samples.wgsl",
    "slots/code_plane/narrow.wgsl",
    "slots/code_plane/wide.wgsl",
    "slots/codes/q2_k.wgsl",
    "slots/codes/q3_k.wgsl",
    "slots/codes/q4_0.wgsl",
    "slots/codes/q4_1.wgsl",
    "slots/codes/q4_k.wgsl",
    "slots/codes/q5_0.wgsl",
    "slots/codes/q5_1.wgsl",
    "slots/codes/q5_k.wgsl",
    "slots/codes/q6_k.wgsl",
    "slots/codes/q8_0.wgsl",
    "slots/epilogue/act_mul.wgsl",
    "slots/epilogue/act_mul_int12.wgsl",
    "slots/epilogue/add.wgsl",
    "slots/epilogue/add_bias.wgsl",
    "slots/epilogue/add_left.wgsl",
    "slots/epilogue/bias.wgsl",
    "slots/epilogue/bias_act.wgsl",
    "slots/epilogue/heads.wgsl",
    "slots/epilogue/soft_cap.wgsl",
    "slots/epilogue/store.wgsl",
    "slots/kv/f16.wgsl",
    "slots/kv/f16_wide.wgsl",
    "slots/kv/f32.wgsl",
    "slots/kv/q8_0.wgsl",
    "slots/kv_pair/f16.wgsl",
    "slots/kv_pair/f32.wgsl",
    "slots/kv_store/pairs.wgsl",
    "slots/kv_store/q8_0.wgsl",
    "slots/matrix/t16.wgsl",
    "slots/matrix/t8.wgsl",
    "slots/next_norm/none.wgsl",
    "slots/next_norm/rms.wgsl",
    "slots/norm/layer.wgsl",
    "slots/norm/rms.wgsl",
    "slots/of_lane/none.wgsl",
    "slots/of_lane/subgroup.wgsl",
    "slots/qk_norm/none.wgsl",
    "slots/qk_norm/rms.wgsl",
    "slots/queries/narrow.wgsl",
    "slots/queries/wide.wgsl",
    "slots/reduce/subgroup.wgsl",
    "slots/reduce/workgroup.wgsl",
    "slots/rope/none.wgsl",
    "slots/rope/rotate.wgsl",
    "slots/rows_out/f32.wgsl",
    "slots/rows_out/int12.wgsl",
    "slots/scale_plane/narrow.wgsl",
    "slots/scale_plane/wide.wgsl",
    "slots/weights/bf16.wgsl",
    "slots/weights/f16.wgsl",
    "slots/weights/f32.wgsl",
    "slots/weights/iq4_nl.wgsl",
    "slots/weights/iq4_xs.wgsl",
    "slots/weights/mxfp4.wgsl",
    "slots/weights/q2_k.wgsl",
    "slots/weights/q3_k.wgsl",
    "slots/weights/q4_0.wgsl",
    "slots/weights/q4_1.wgsl",
    "slots/weights/q4_k.wgsl",
    "slots/weights/q5_0.wgsl",
    "slots/weights/q5_1.wgsl",
    "slots/weights/q5_k.wgsl",
    "slots/weights/q6_k.wgsl",
    "slots/weights/q8_0.wgsl",
];

/// Paths of all embedded files, below `shaders/`.
pub fn shader_paths() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(path, _)| *path)
}

/// The text of a file.
///
/// # Errors
/// There is no such file.
pub(super) fn read(path: &str) -> Result<Cow<'static, str>> {
    if let Some(folder) = std::env::var_os("OCTAVO_SHADER_DIR") {
        let file = std::path::Path::new(&folder).join(path);
        let text = std::fs::read_to_string(&file);
        return text.map(Cow::Owned).map_err(|error| Error::config(format!("{}: {error}", file.display())));
    }
    let found = SOURCES.iter().find(|(name, _)| *name == path);
    found.map(|(_, text)| Cow::Borrowed(*text)).ok_or_else(|| Error::bug(format!("there is no shaders/{path}")))
}
