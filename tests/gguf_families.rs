//! Each family as llama.cpp's converter would write it: names, fused and stacked tensors, row order and metadata keys are
//! spelled out here, from the folder's tensors. The file must open as the same model, to the last bit.

mod tiny_files;

use octavo::model::files::ModelFiles;
use octavo::model::spec::{MlpKind, ModelSpec, RopeScaling, TensorRole as R};
use octavo::weights::tensors::MatrixRef;
use serde_json::json;
use tiny_files::{
    Gguf, HIDDEN, Meta, Tensor, golden, is_matrix, layer_roles, open_safetensors, read_everything, safetensors,
    tiny_config, tiny_tensors,
};

fn folder(name: &str) -> ModelFiles {
    ModelFiles::open(&golden(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn rows(matrix: &MatrixRef<'_>) -> Vec<Vec<f32>> {
    let mut row = vec![0.0; matrix.columns];
    let read = |index| {
        matrix.decode_row(index, &mut row);
        row.clone()
    };
    (0..matrix.rows).map(read).collect()
}

/// The rows of all parts, or a vector as its only row.
fn content(files: &ModelFiles, role: R) -> Vec<Vec<f32>> {
    match is_matrix(role) {
        true => files.tensors.parts(role).unwrap().iter().flat_map(rows).collect(),
        false => vec![files.tensors.vector(role).unwrap()],
    }
}

/// How a family's files differ from the usual ones.
#[derive(Clone, Copy, Default)]
struct Style {
    arch: &'static str,
    /// Rows of query and key heads as neighbouring pairs.
    pairs: bool,
    /// Query, key and value in one tensor.
    fused_qkv: bool,
    /// Gate and up in one tensor, called `ffn_up`.
    fused_gate_up: bool,
}

struct Converter<'a> {
    files: &'a ModelFiles,
    style: Style,
    gguf: Gguf,
}

impl<'a> Converter<'a> {
    fn new(files: &'a ModelFiles, style: Style) -> Self {
        let mut converter = Self { files, style, gguf: Gguf { version: 3, pairs: Vec::new(), tensors: Vec::new() } };
        converter.gguf.pairs.push(("general.architecture".into(), Meta::Text(style.arch)));
        let (spec, attn) = (&files.spec, &files.spec.layers[0].attn);
        let dense = spec.layers.iter().find(|layer| !matches!(layer.mlp.kind, MlpKind::Experts { .. }));
        converter.number("context_length", spec.max_position_embeddings);
        converter.number("embedding_length", spec.hidden_size);
        converter.number("block_count", spec.layers.len());
        converter.number("feed_forward_length", dense.unwrap_or(&spec.layers[0]).mlp.intermediate_size);
        converter.number("attention.head_count", attn.heads);
        converter.number("attention.head_count_kv", attn.kv_heads);
        converter.number("attention.key_length", attn.head_dim);
        converter.number("attention.value_length", attn.head_dim);
        converter.real("attention.layer_norm_rms_epsilon", f64::from(spec.final_norm.eps));
        if let Some(rope) = spec.ropes.first() {
            converter.number("rope.dimension_count", rope.rotary_dim);
            converter.real("rope.freq_base", rope.theta);
        }
        converter.tensors();
        converter
    }

    fn set(&mut self, key: &str, value: Meta) {
        self.gguf = self.gguf.clone().set(&format!("{}.{key}", self.style.arch), value);
    }

    fn number(&mut self, key: &str, value: usize) {
        self.set(key, Meta::U32(value as u32));
    }

    fn real(&mut self, key: &str, value: f64) {
        self.set(key, Meta::F32(value as f32));
    }

    fn write(&mut self, name: String, dimensions: &[usize], values: &[Vec<f32>]) {
        let bytes: Vec<u8> = values.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let dimensions: Vec<u64> = dimensions.iter().map(|&n| n as u64).collect();
        assert_eq!(bytes.len() as u64, 4 * dimensions.iter().product::<u64>(), "{name}");
        self.gguf.tensors.push(Tensor { name, dimensions, kind: 0, bytes });
    }

    /// Writes the rows of some roles one after another.
    fn join(&mut self, name: &str, roles: &[R]) {
        let values: Vec<Vec<f32>> = roles.iter().flat_map(|&role| self.in_file_order(role)).collect();
        match is_matrix(roles[0]) {
            true => self.write(name.to_owned(), &[values[0].len(), values.len()], &values),
            false => self.write(name.to_owned(), &[values.iter().map(Vec::len).sum()], &values),
        }
    }

    fn in_file_order(&self, role: R) -> Vec<Vec<f32>> {
        let values = content(self.files, role);
        let (R::Query(layer) | R::Key(layer)) = role else { return values };
        if !self.style.pairs {
            return values;
        }
        let (head_dim, half) = (self.files.spec.layers[layer].attn.head_dim, self.files.spec.ropes[0].rotary_dim / 2);
        assert_eq!(head_dim, 2 * half);
        // Reshape to [heads, 2, half], swap the last two axes, flatten.
        let pair = |row: usize| row / head_dim * head_dim + row % 2 * half + row % head_dim / 2;
        (0..values.len()).map(|row| values[pair(row)].clone()).collect()
    }

    fn tensors(&mut self) {
        self.join("token_embd.weight", &[R::Embed]);
        self.join("output_norm.weight", &[R::FinalNorm]);
        for (role, name) in
            [(R::Positions, "position_embd.weight"), (R::FinalNormBias, "output_norm.bias"), (R::Head, "output.weight")]
        {
            if self.files.tensors.has(role) {
                self.join(name, &[role]);
            }
        }
        for layer in 0..self.files.spec.layers.len() {
            self.layer(layer);
        }
    }

    fn layer(&mut self, n: usize) {
        let name = |part: &str| format!("blk.{n}.{part}");
        if self.style.fused_qkv {
            self.join(&name("attn_qkv.weight"), &[R::Query(n), R::Key(n), R::Value(n)]);
            if self.files.tensors.has(R::QueryBias(n)) {
                self.join(&name("attn_qkv.bias"), &[R::QueryBias(n), R::KeyBias(n), R::ValueBias(n)]);
            }
        } else {
            for (role, part) in [(R::Query(n), "attn_q"), (R::Key(n), "attn_k"), (R::Value(n), "attn_v")] {
                self.join(&name(&format!("{part}.weight")), &[role]);
            }
        }
        if let MlpKind::Experts { count, .. } = self.files.spec.layers[n].mlp.kind {
            for (role, part) in
                [(R::Gate(n), "ffn_gate_exps"), (R::Up(n), "ffn_up_exps"), (R::Down(n), "ffn_down_exps")]
            {
                let values = content(self.files, role);
                let dimensions = [values[0].len(), values.len() / count, count];
                self.write(name(&format!("{part}.weight")), &dimensions, &values);
            }
            self.join(&name("ffn_gate_inp.weight"), &[R::Router(n)]);
        } else if self.style.fused_gate_up {
            self.join(&name("ffn_up.weight"), &[R::Gate(n), R::Up(n)]);
            self.join(&name("ffn_down.weight"), &[R::Down(n)]);
        } else {
            for (role, part) in [(R::Gate(n), "ffn_gate"), (R::Up(n), "ffn_up"), (R::Down(n), "ffn_down")] {
                if self.files.tensors.has(role) {
                    self.join(&name(&format!("{part}.weight")), &[role]);
                }
            }
        }
        for (role, part) in [
            (R::Output(n), "attn_output.weight"),
            (R::OutputBias(n), "attn_output.bias"),
            (R::AttnNorm(n), "attn_norm.weight"),
            (R::AttnNormBias(n), "attn_norm.bias"),
            (R::QueryNorm(n), "attn_q_norm.weight"),
            (R::KeyNorm(n), "attn_k_norm.weight"),
            (R::AttnPostNorm(n), "post_attention_norm.weight"),
            (R::MlpNorm(n), "ffn_norm.weight"),
            (R::MlpNormBias(n), "ffn_norm.bias"),
            (R::MlpPostNorm(n), "post_ffw_norm.weight"),
            (R::UpBias(n), "ffn_up.bias"),
            (R::DownBias(n), "ffn_down.bias"),
        ] {
            if self.files.tensors.has(role) {
                self.join(&name(part), &[role]);
            }
        }
    }
}

/// Opens the file and compares it with the folder it came from; `expected` is what the file can say.
fn assert_same(converter: Converter<'_>, expected: &ModelSpec) {
    let (files, gguf) = (converter.files, converter.gguf.open().unwrap_or_else(|error| panic!("{error}")));
    read_everything(&gguf);
    assert_eq!(&gguf.spec, expected);
    let layers = (0..expected.layers.len()).flat_map(layer_roles);
    let mut compared = 0;
    for role in layers.chain([R::Embed, R::Head, R::FinalNorm, R::FinalNormBias, R::Positions]) {
        assert_eq!(gguf.tensors.has(role), files.tensors.has(role), "{role:?}");
        if files.tensors.has(role) {
            assert_eq!(content(&gguf, role), content(files, role), "{role:?}");
            compared += 1;
        }
    }
    assert!(compared >= 2 + 9 * expected.layers.len(), "{compared}");
}

#[test]
fn mistral_is_a_llama_with_a_window() {
    let files = folder("tiny-mistral");
    let mut converter = Converter::new(&files, Style { arch: "llama", pairs: true, ..Style::default() });
    converter.number("attention.sliding_window", 24);
    assert_same(converter, &ModelSpec { family: "llama", ..files.spec.clone() });
}

#[test]
fn gpt2_has_one_tensor_for_query_key_and_value() {
    let files = folder("tiny-gpt2");
    let mut converter = Converter::new(&files, Style { arch: "gpt2", fused_qkv: true, ..Style::default() });
    converter.real("attention.layer_norm_epsilon", 1e-5);
    converter.gguf = converter.gguf.without("gpt2.attention.layer_norm_rms_epsilon");
    assert_same(converter, &files.spec);
}

#[test]
fn qwen3_moe_stacks_its_experts() {
    let files = folder("tiny-qwen3-moe");
    let mut converter = Converter::new(&files, Style { arch: "qwen3moe", ..Style::default() });
    converter.number("expert_count", 8);
    converter.number("expert_used_count", 2);
    converter.number("expert_feed_forward_length", 32);
    assert_same(converter, &files.spec);
}

#[test]
fn gemma2_holds_whole_norm_weights_and_no_query_scalar() {
    let files = folder("tiny-gemma2");
    let mut converter = Converter::new(&files, Style { arch: "gemma2", ..Style::default() });
    converter.number("attention.sliding_window", 24);
    converter.real("attn_logit_softcapping", 5.0);
    converter.real("final_logit_softcapping", 20.0);
    let mut expected = files.spec.clone();
    expected.layers.iter_mut().for_each(|layer| layer.attn.scale = 0.25);
    assert_same(converter, &expected);
}

#[test]
fn gemma3_slides_by_a_pattern_with_a_rotation_of_its_own() {
    let files = folder("tiny-gemma3");
    let mut converter = Converter::new(&files, Style { arch: "gemma3", ..Style::default() });
    converter.number("attention.sliding_window", 24);
    converter.number("attention.sliding_window_pattern", 3);
    converter.set("rope.scaling.type", Meta::Text("linear"));
    converter.real("rope.scaling.factor", 8.0);
    let by_layer = |flags: &[bool]| {
        let key = "gemma3.attention.sliding_window_pattern";
        converter.gguf.clone().set(key, Meta::Flags(flags.to_vec())).open()
    };
    assert_eq!(by_layer(&[true, true, false, true]).unwrap().spec, files.spec);
    let windows: Vec<Option<usize>> =
        by_layer(&[false, true, true, false]).unwrap().spec.layers.iter().map(|layer| layer.attn.window).collect();
    assert_eq!(windows, [None, Some(24), Some(24), None]);
    assert!(by_layer(&[true; 5]).err().unwrap().to_string().contains("5 entries for 4 layers"));
    assert_same(converter, &files.spec);
}

#[test]
fn phi3_fuses_projections_and_may_have_two_sets_of_divisors() {
    let files = folder("tiny-phi3");
    let style = Style { arch: "phi3", fused_qkv: true, fused_gate_up: true, ..Style::default() };
    assert_same(Converter::new(&files, style), &files.spec);

    let mut converter = Converter::new(&files, style);
    let (short, long): (Vec<f32>, Vec<f32>) = ((0..12).map(|n| 1.0 + n as f32 / 64.0).collect(), vec![4.0; 12]);
    converter.write("rope_factors_short.weight".into(), &[12], std::slice::from_ref(&short));
    converter.write("rope_factors_long.weight".into(), &[12], std::slice::from_ref(&long));
    converter.number("rope.scaling.original_context_length", 128);
    let mut expected = files.spec.clone();
    // 512 of 128: sqrt(1 + ln 4 / ln 128).
    let attention_factor = (1.0 + 4f64.ln() / 128f64.ln()).sqrt();
    let scaling = |attention_factor| RopeScaling::LongRope {
        short: short.clone(),
        long: long.clone(),
        original_context: 128,
        attention_factor,
    };
    expected.ropes[0].scaling = scaling(attention_factor);
    assert_same(converter, &expected);

    let mut converter = Converter::new(&files, style);
    converter.write("rope_factors_short.weight".into(), &[12], std::slice::from_ref(&short));
    converter.write("rope_factors_long.weight".into(), &[12], std::slice::from_ref(&long));
    converter.number("rope.scaling.original_context_length", 128);
    converter.real("rope.scaling.attn_factor", 1.25);
    expected.ropes[0].scaling = scaling(1.25);
    assert_same(converter, &expected);
}

#[test]
fn olmo2_norms_whole_rows() {
    let files = folder("tiny-olmo2");
    assert_same(Converter::new(&files, Style { arch: "olmo2", ..Style::default() }), &files.spec);
}

#[test]
fn smollm3_does_not_rotate_every_fourth_layer() {
    let mut config = tiny_config();
    config["architectures"] = json!(["SmolLM3ForCausalLM"]);
    config["num_hidden_layers"] = json!(4);
    let mut tensors = tiny_tensors();
    for layer in 1..4 {
        let of_layer = tiny_tensors().into_iter().filter(|(name, ..)| name.contains(".0."));
        tensors.extend(of_layer.map(|(name, shape, kind)| (name.replace(".0.", &format!(".{layer}.")), shape, kind)));
    }
    let files = open_safetensors(&config, safetensors(&tensors)).unwrap();
    let rotates: Vec<bool> = files.spec.layers.iter().map(|layer| layer.attn.rope.is_some()).collect();
    assert_eq!(rotates, [true, true, true, false]);
    assert_eq!(files.spec.hidden_size, HIDDEN);
    assert_same(Converter::new(&files, Style { arch: "smollm3", pairs: true, ..Style::default() }), &files.spec);

    config["no_rope_layers"] = json!([0, 1, 1, 0]);
    let files = open_safetensors(&config, safetensors(&tensors)).unwrap();
    let rotates: Vec<bool> = files.spec.layers.iter().map(|layer| layer.attn.rope.is_some()).collect();
    assert_eq!(rotates, [false, true, true, false]);
}

#[test]
fn yarn_keys_of_a_file_mean_what_its_configuration_says() {
    let yarn = |gguf: Gguf| {
        gguf.set("llama.rope.scaling.type", Meta::Text("yarn"))
            .set("llama.rope.scaling.factor", Meta::F32(4.0))
            .set("llama.rope.scaling.original_context_length", Meta::U32(32))
    };
    let mut config = tiny_config();
    config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let from_config = open_safetensors(&config, safetensors(&tiny_tensors())).unwrap();
    let from_gguf = yarn(Gguf::tiny_llama()).open().unwrap();
    assert_eq!(from_gguf.spec.ropes, from_config.spec.ropes);
    // The stretched context counts where the old number is left in the file.
    assert_eq!((from_gguf.spec.max_position_embeddings, from_config.spec.max_position_embeddings), (128, 128));

    let scaled = yarn(Gguf::tiny_llama()).set("llama.rope.scaling.attn_factor", Meta::F32(0.5)).open().unwrap();
    let RopeScaling::Yarn { attention_factor, .. } = scaled.spec.ropes[0].scaling else { panic!("{:?}", scaled.spec) };
    assert_eq!(attention_factor, 0.5 * (1.0 + 0.1 * 4f64.ln()));
}
