//! Writes small model files for tests that need to damage them: GGUF and safetensors, with the place of every number
//! that a reader must not trust.
#![allow(dead_code)] // Each test crate uses its own part.

use octavo::model::Config;
use octavo::model::files::ModelFiles;
use octavo::model::spec::TensorRole;
use octavo::text::files::TextFiles;
use octavo::weights::FileBytes;
use octavo::weights::safetensors::SafetensorsFiles;
use octavo::weights::source::TensorInfo;
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

pub const HIDDEN: usize = 32;
pub const MLP: usize = 64;
pub const VOCAB: usize = 8;

/// A metadata value to write.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    Flags(Vec<bool>),
}

/// A tensor to write; `dimensions` as in the file, innermost first.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dimensions: Vec<u64>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

/// The parts of a GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    pub version: u32,
    pub pairs: Vec<(String, Meta)>,
    pub tensors: Vec<Tensor>,
}

/// A written file and where its counts, lengths, types, dimensions and offsets lie: byte and width.
pub struct Written {
    pub bytes: Vec<u8>,
    pub fields: Vec<(usize, usize)>,
    /// Where tensor data starts.
    pub data_start: usize,
}

impl Gguf {
    /// A llama model of one layer with all kinds of metadata.
    pub fn tiny_llama() -> Self {
        let text = |key: &str, value| (key.to_owned(), Meta::Text(value));
        let number = |key: &str, value| (key.to_owned(), Meta::U32(value));
        let pairs = vec![
            text("general.architecture", "llama"),
            number("llama.context_length", 64),
            number("llama.embedding_length", HIDDEN as u32),
            number("llama.block_count", 1),
            number("llama.feed_forward_length", MLP as u32),
            number("llama.attention.head_count", 2),
            number("llama.attention.head_count_kv", 1),
            number("llama.rope.dimension_count", 16),
            ("llama.rope.freq_base".to_owned(), Meta::F32(10_000.0)),
            ("llama.attention.layer_norm_rms_epsilon".to_owned(), Meta::F32(1e-5)),
            text("tokenizer.ggml.model", "gpt2"),
            ("tokenizer.ggml.tokens".to_owned(), Meta::Texts((0..VOCAB).map(|n| format!("t{n}")).collect())),
            ("tokenizer.ggml.token_type".to_owned(), Meta::I32s(vec![1; VOCAB])),
            ("tokenizer.ggml.merges".to_owned(), Meta::Texts(vec!["t 1".to_owned()])),
            number("tokenizer.ggml.eos_token_id", 7),
            ("tokenizer.ggml.add_bos_token".to_owned(), Meta::Bool(false)),
        ];
        let mut tensors = Vec::new();
        for (name, shape) in layer_shapes() {
            let dimensions: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
            let elements: usize = shape.iter().product();
            // Vectors in F32; matrices in Q8_0.
            let (kind, size) = if shape.len() == 1 { (0, elements * 4) } else { (8, elements / 32 * 34) };
            let bytes = (0..size).map(|n| (n * 37 % 119) as u8).collect();
            tensors.push(Tensor { name: name.to_owned(), dimensions, kind, bytes });
        }
        Self { version: 3, pairs, tensors }
    }

    /// Replaces or adds a pair.
    pub fn set(mut self, key: &str, value: Meta) -> Self {
        self.pairs.retain(|(known, _)| known != key);
        self.pairs.push((key.to_owned(), value));
        self
    }

    /// Removes a pair or a tensor.
    pub fn without(mut self, name: &str) -> Self {
        let before = self.pairs.len() + self.tensors.len();
        self.pairs.retain(|(known, _)| known != name);
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.pairs.len() + self.tensors.len() + 1, before, "there is one {name}");
        self
    }

    /// The tensor called `name`.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tiny model has it")
    }

    pub fn write(&self) -> Written {
        let mut file = Writer::default();
        file.bytes.extend(b"GGUF");
        file.u32(self.version);
        file.u64(self.tensors.len() as u64);
        file.u64(self.pairs.len() as u64);
        for (key, value) in &self.pairs {
            file.text(key);
            match value {
                Meta::U32(value) => {
                    file.u32(4);
                    file.u32(*value);
                }
                Meta::F32(value) => {
                    file.u32(6);
                    file.u32(value.to_bits());
                }
                Meta::Bool(value) => {
                    file.u32(7);
                    file.bytes.push(u8::from(*value));
                }
                Meta::Text(value) => {
                    file.u32(8);
                    file.text(value);
                }
                Meta::Texts(values) => {
                    file.u32(9);
                    file.u32(8);
                    file.u64(values.len() as u64);
                    values.iter().for_each(|value| file.text(value));
                }
                Meta::Flags(values) => {
                    file.u32(9);
                    file.u32(7);
                    file.u64(values.len() as u64);
                    file.bytes.extend(values.iter().map(|value| u8::from(*value)));
                }
                Meta::I32s(values) => {
                    file.u32(9);
                    file.u32(5);
                    file.u64(values.len() as u64);
                    values.iter().for_each(|value| file.bytes.extend(value.to_le_bytes()));
                }
            }
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            file.text(&tensor.name);
            file.u32(tensor.dimensions.len() as u32);
            tensor.dimensions.iter().for_each(|&dimension| file.u64(dimension));
            file.u32(tensor.kind);
            file.u64(offset as u64);
            offset += tensor.bytes.len().next_multiple_of(32);
        }
        let data_start = file.pad();
        for tensor in &self.tensors {
            file.pad();
            file.bytes.extend(&tensor.bytes);
        }
        Written { bytes: file.bytes, fields: file.fields, data_start }
    }

    pub fn open(&self) -> octavo::error::Result<ModelFiles> {
        open_gguf(self.write().bytes)
    }
}

pub fn open_gguf(bytes: Vec<u8>) -> octavo::error::Result<ModelFiles> {
    ModelFiles::from_gguf(FileBytes::Owned(bytes), "tiny".to_owned())
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    fields: Vec<(usize, usize)>,
}

impl Writer {
    fn u32(&mut self, value: u32) {
        self.fields.push((self.bytes.len(), 4));
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.fields.push((self.bytes.len(), 8));
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn pad(&mut self) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        self.bytes.len()
    }
}

fn layer_shapes() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("token_embd.weight", vec![VOCAB, HIDDEN]),
        ("output_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_q.weight", vec![HIDDEN, HIDDEN]),
        ("blk.0.attn_k.weight", vec![HIDDEN / 2, HIDDEN]),
        ("blk.0.attn_v.weight", vec![HIDDEN / 2, HIDDEN]),
        ("blk.0.attn_output.weight", vec![HIDDEN, HIDDEN]),
        ("blk.0.ffn_norm.weight", vec![HIDDEN]),
        ("blk.0.ffn_gate.weight", vec![MLP, HIDDEN]),
        ("blk.0.ffn_up.weight", vec![MLP, HIDDEN]),
        ("blk.0.ffn_down.weight", vec![HIDDEN, MLP]),
    ]
}

/// A configuration of the same model in Hugging Face's form.
pub fn tiny_config() -> Json {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": MLP, "vocab_size": VOCAB,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "head_dim": 16, "eos_token_id": 7,
        "rope_scaling": null,
    })
}

/// Name, shape and type of each of its tensors.
pub fn tiny_tensors() -> Vec<(String, Vec<usize>, &'static str)> {
    let entry = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec(), "F32");
    let layer = |name: &str, shape: &[usize]| entry(&format!("model.layers.0.{name}.weight"), shape);
    vec![
        entry("model.embed_tokens.weight", &[VOCAB, HIDDEN]),
        entry("model.norm.weight", &[HIDDEN]),
        layer("input_layernorm", &[HIDDEN]),
        layer("self_attn.q_proj", &[HIDDEN, HIDDEN]),
        layer("self_attn.k_proj", &[HIDDEN / 2, HIDDEN]),
        layer("self_attn.v_proj", &[HIDDEN / 2, HIDDEN]),
        layer("self_attn.o_proj", &[HIDDEN, HIDDEN]),
        layer("post_attention_layernorm", &[HIDDEN]),
        layer("mlp.gate_proj", &[MLP, HIDDEN]),
        layer("mlp.up_proj", &[MLP, HIDDEN]),
        layer("mlp.down_proj", &[HIDDEN, MLP]),
    ]
}

/// A safetensors file with these tensors; values are the tensor's place in the list plus a fraction.
pub fn safetensors(tensors: &[(String, Vec<usize>, &'static str)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (place, (name, shape, kind)) in tensors.iter().enumerate() {
        let start = data.len();
        for element in 0..shape.iter().product::<usize>() {
            match *kind {
                "F32" | "I32" => data.extend((place as f32 + element as f32 / 4096.0).to_le_bytes()),
                "F16" | "BF16" => data.extend((place as u16 * 256 + element as u16).to_le_bytes()),
                other => panic!("no test writes {other}"),
            }
        }
        header.insert(name.clone(), json!({"dtype": kind, "shape": shape, "data_offsets": [start, data.len()]}));
    }
    with_header(&Json::Object(header).to_string(), &data)
}

/// A safetensors file with any text as its header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

pub fn open_safetensors(config: &Json, bytes: Vec<u8>) -> octavo::error::Result<ModelFiles> {
    let config = Config::parse(config.to_string().as_bytes())?;
    let weights = SafetensorsFiles::new(vec![("model.safetensors".to_owned(), FileBytes::Owned(bytes))], None)?;
    ModelFiles::from_parts(&config, None, weights, TextFiles::default(), "tiny".to_owned())
}

/// Reads every tensor that the model uses, to its last element.
pub fn read_everything(files: &ModelFiles) {
    use TensorRole::{Embed, FinalNorm, FinalNormBias, Head, Positions};
    let layers = (0..files.spec.layers.len()).flat_map(layer_roles);
    for role in layers.chain([Embed, FinalNorm, FinalNormBias, Positions]).filter(|role| files.tensors.has(*role)) {
        read(files, role);
    }
    read(files, Head);
    let named = |info: &TensorInfo| !info.name.is_empty();
    assert!(files.tensors.infos().all(named));
}

fn read(files: &ModelFiles, role: TensorRole) {
    if !is_matrix(role) {
        assert!(!files.tensors.vector(role).expect("a bound vector").is_empty());
        return;
    }
    for matrix in files.tensors.parts(role).expect("bound matrices") {
        let mut row = vec![f32::NAN; matrix.columns];
        (0..matrix.rows).for_each(|index| matrix.decode_row(index, &mut row));
    }
}

/// Whether a role is a matrix, or several; the others are vectors.
pub fn is_matrix(role: TensorRole) -> bool {
    use TensorRole::*;
    matches!(
        role,
        Embed | Head | Positions | Query(_) | Key(_) | Value(_) | Output(_) | Router(_) | Gate(_) | Up(_) | Down(_)
    )
}

/// All roles that a layer may have.
pub fn layer_roles(layer: usize) -> Vec<TensorRole> {
    use TensorRole::*;
    let attention: [fn(usize) -> TensorRole; 13] = [
        AttnNorm,
        AttnNormBias,
        Query,
        Key,
        Value,
        QueryBias,
        KeyBias,
        ValueBias,
        QueryNorm,
        KeyNorm,
        Output,
        OutputBias,
        AttnPostNorm,
    ];
    let mlp: [fn(usize) -> TensorRole; 9] =
        [MlpNorm, MlpNormBias, Router, Gate, Up, UpBias, Down, DownBias, MlpPostNorm];
    attention.iter().chain(&mlp).map(|role| role(layer)).collect()
}

/// A file or folder of the golden data.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Splits tiny-llama over three files with an index, and returns the folder.
pub fn sharded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden("tiny-llama/config.json"), folder.path().join("config.json")).unwrap();
    let file = std::fs::read(golden("tiny-llama/model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&file).unwrap().tensors();
    tensors.sort_by(|left, right| left.0.cmp(&right.0));
    let mut map = serde_json::Map::new();
    for shard in 0..3 {
        let name = format!("model-{shard}.safetensors");
        let mine: Vec<_> = tensors.iter().skip(shard).step_by(3).cloned().collect();
        mine.iter().for_each(|(tensor, _)| drop(map.insert(tensor.clone(), json!(name))));
        std::fs::write(folder.path().join(&name), ::safetensors::serialize(mine, None).unwrap()).unwrap();
    }
    write_index(folder.path(), &json!({"metadata": {}, "weight_map": map}));
    folder
}

/// Writes the list of the shards in `folder`.
pub fn write_index(folder: &Path, index: &Json) {
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
