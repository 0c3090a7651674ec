//! Model folders that lie: configurations of any content, safetensors headers with wrong types, shapes, offsets and names,
//! indexes that point elsewhere, and damaged bytes on top.

use super::dice::Dice;
use super::tiny_files::{tiny_config, tiny_tensors, with_header};
use octavo::error::Result;
use octavo::model::Config;
use octavo::model::files::ModelFiles;
use octavo::text::files::TextFiles;
use octavo::weights::FileBytes;
use octavo::weights::safetensors::SafetensorsFiles;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;

/// What a model folder holds.
pub struct Folder {
    config: Vec<u8>,
    generation: Option<Vec<u8>>,
    /// Name and content.
    weights: Vec<(String, Vec<u8>)>,
    index: Option<BTreeMap<String, String>>,
}

const CLASSES: [&str; 14] = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "GPT2LMHeadModel",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "Olmo2ForCausalLM",
    "SmolLM3ForCausalLM",
    "BertModel",
    "",
    "Llama\u{0}",
];

/// Settings of all families that size something or choose how the model is read, besides those in the tiny configuration.
const KEYS: [&str; 34] = [
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "sliding_window_pattern",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_local_base_freq",
    "original_max_position_embeddings",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "hidden_activation",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "norm_topk_prob",
    "no_rope_layers",
    "no_rope_layer_interval",
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "n_positions",
    "n_ctx",
    "layer_norm_epsilon",
    "activation_function",
    "scale_attn_weights",
    "torch_dtype",
    "quantization_config",
    "bos_token_id",
    "model_type",
];

/// The folder with this seed: always the same bytes.
pub fn case(seed: u64) -> Folder {
    let mut dice = Dice(seed);
    let Json::Object(mut config) = tiny_config() else { unreachable!("it is an object") };
    let changes = [0, 0, 1, 1, 2, 4];
    for _ in 0..dice.of(&changes) {
        change_config(&mut dice, &mut config);
    }
    let mut config = Json::Object(config).to_string().into_bytes();
    if dice.one_in(10) {
        let length = config.len();
        dice.damage(&mut config, length);
    }
    let generation = dice.one_in(6).then(|| {
        let keys = ["eos_token_id", "temperature", "top_k", "top_p", "do_sample", "repetition_penalty"];
        json!({(dice.of(&keys)): value(&mut dice)}).to_string().into_bytes()
    });
    let files = dice.of(&[1, 1, 1, 3]);
    let index = (files > 1).then(|| index(&mut dice, files));
    let weights = (0..files).map(|file| (file_name(file), weights(&mut dice, file, files))).collect();
    Folder { config, generation, weights, index }
}

impl Folder {
    pub fn bytes(&self) -> usize {
        let index = self.index.iter().flatten().map(|(tensor, file)| tensor.len() + file.len()).sum::<usize>();
        let weights = self.weights.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        self.config.len() + self.generation.as_ref().map_or(0, Vec::len) + weights + index
    }

    /// Opens what would be found in the folder.
    pub fn open(self) -> Result<ModelFiles> {
        let config = Config::parse(&self.config)?;
        let generation = self.generation.as_deref().map(Config::parse).transpose()?;
        let files = self.weights.into_iter().map(|(name, bytes)| (name, FileBytes::Owned(bytes))).collect();
        let weights = SafetensorsFiles::new(files, self.index.as_ref())?;
        ModelFiles::from_parts(&config, generation.as_ref(), weights, TextFiles::default(), "tiny".to_owned())
    }

    /// Writes everything to `folder`.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join("config.json"), &self.config)?;
        if let Some(generation) = &self.generation {
            std::fs::write(folder.join("generation_config.json"), generation)?;
        }
        let Some(map) = &self.index else {
            return std::fs::write(folder.join("model.safetensors"), &self.weights[0].1);
        };
        std::fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string())?;
        self.weights.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
    }
}

fn file_name(file: usize) -> String {
    format!("model-{file}.safetensors")
}

/// Any JSON, with a liking for what configurations hold.
fn value(dice: &mut Dice) -> Json {
    match dice.below(12) {
        0..4 => json!(dice.number()),
        4 => json!(-(dice.number() as i64 & 0xffff)),
        5 => json!(dice.of(&[0.0, -1.0, 0.5, 1e-300, 1e300, 1e38])),
        6 => json!(dice.one_in(2)),
        7 => json!(dice.of(&["", "silu", "gelu_pytorch_tanh", "float16", "full_attention", "\u{0}"])),
        8 => Json::Array((0..dice.of(&[0, 1, 2, 300])).map(|_| json!(dice.number())).collect()),
        9 => {
            let kinds = ["full_attention", "sliding_attention", "linear_attention", ""];
            Json::Array((0..dice.of(&[1, 2, 9])).map(|_| json!(dice.of(&kinds))).collect())
        }
        10 => {
            let kinds = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "?"];
            let keys = [
                "factor",
                "original_max_position_embeddings",
                "short_factor",
                "long_factor",
                "low_freq_factor",
                "high_freq_factor",
                "rope_theta",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "truncate",
            ];
            let mut scaling = Map::new();
            scaling.insert(dice.of(&["rope_type", "type"]).to_owned(), json!(dice.of(&kinds)));
            for _ in 0..dice.below(4) {
                let inner =
                    if dice.one_in(3) { json!(vec![1.5; dice.of(&[0, 7, 8, 9])]) } else { json!(dice.number()) };
                scaling.insert(dice.of(&keys).to_owned(), inner);
            }
            Json::Object(scaling)
        }
        _ => Json::Null,
    }
}

fn change_config(dice: &mut Dice, config: &mut Map<String, Json>) {
    let known: Vec<String> = config.keys().cloned().collect();
    match dice.below(8) {
        0 | 1 => drop(config.insert("architectures".to_owned(), json!([dice.of(&CLASSES)]))),
        2 if !known.is_empty() => drop(config.remove(&dice.of(&known))),
        3 | 4 if !known.is_empty() => drop(config.insert(dice.of(&known), value(dice))),
        5 => drop(config.insert("rope_scaling".to_owned(), value(dice))),
        _ => drop(config.insert(dice.of(&KEYS).to_owned(), value(dice))),
    }
}

/// Which file holds which tensor, and now and then a lie.
fn index(dice: &mut Dice, files: usize) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> =
        tiny_tensors().iter().enumerate().map(|(at, (name, ..))| (name.clone(), file_name(at % files))).collect();
    if dice.one_in(3) {
        let names: Vec<String> = map.keys().cloned().collect();
        let name = if dice.one_in(2) { "extra".to_owned() } else { dice.of(&names) };
        map.insert(name, dice.of(&[file_name(0), file_name(7), "../x".to_owned(), String::new()]));
    }
    map
}

/// One safetensors file: every `files`th tensor from `file` on.
fn weights(dice: &mut Dice, file: usize, files: usize) -> Vec<u8> {
    let mut entries: Vec<(String, Json)> = Vec::new();
    let mut data = Vec::new();
    for (name, shape, kind) in tiny_tensors().into_iter().skip(file).step_by(files) {
        let start = data.len();
        data.resize(start + 4 * shape.iter().product::<usize>(), 0x3e);
        entries.push((name, json!({"dtype": kind, "shape": shape, "data_offsets": [start, data.len()]})));
    }
    let changes = [0, 0, 0, 1, 1, 2, 3];
    for _ in 0..dice.of(&changes) {
        change_entry(dice, &mut entries);
    }
    let parts: Vec<String> = entries.iter().map(|(name, entry)| format!("{}:{entry}", json!(name))).collect();
    let mut header = format!("{{{}}}", parts.join(","));
    match dice.below(24) {
        0 => header = "[".repeat(dice.of(&[100, 5000])),
        1 => header.push_str(&" ".repeat(dice.below(5000))),
        2 => header = header.replacen("[", "[[", 1),
        _ => {}
    }
    let end = 8 + header.len();
    let mut bytes = with_header(&header, &data);
    match dice.below(10) {
        0 => {
            let claim = dice.number();
            bytes[..8].copy_from_slice(&claim.to_le_bytes());
        }
        1 | 2 => dice.damage(&mut bytes, end),
        3 => bytes.truncate(dice.below(bytes.len())),
        _ => {}
    }
    bytes
}

fn change_entry(dice: &mut Dice, entries: &mut Vec<(String, Json)>) {
    let (other, place) = (dice.of(entries), dice.below(entries.len()));
    let (name, entry) = &mut entries[place];
    if !entry.is_object() {
        *entry = json!({});
    }
    let kinds = ["F16", "BF16", "F64", "I8", "U64", "BOOL", "F8_E4M3", "F4", "Q4_0", ""];
    match dice.below(12) {
        0 | 1 => entry["dtype"] = json!(dice.of(&kinds)),
        2 => entry["shape"] = value(dice),
        3 | 4 => {
            let shape = entry["shape"].as_array().map_or(0, Vec::len);
            if shape > 0 {
                entry["shape"][dice.below(shape)] = json!(dice.number());
            }
        }
        5 => {
            if let Some(offset) = entry["data_offsets"].get_mut(dice.below(2)) {
                *offset = json!(dice.number());
            }
        }
        6 => entry["data_offsets"] = value(dice),
        // Two tensors share their bytes.
        7 => entry["data_offsets"] = other.1["data_offsets"].clone(),
        8 => *name = dice.of(&[other.0, String::new(), "__metadata__".to_owned(), "n".repeat(20_000)]),
        9 if entries.len() > 1 => drop(entries.remove(place)),
        10 => entries.push(other),
        _ => entries.push(("__metadata__".to_owned(), dice.of(&[json!({"format": "pt"}), json!({"a": 1}), json!([])]))),
    }
}
