//! Opening models: folders and GGUF files of every supported architecture, and every refusal by name.

mod tiny_files;

use octavo::base::DType;
use octavo::model::files::ModelFiles;
use octavo::model::spec::{ModelSpec, RopeScaling, TensorRole};
use octavo::text::files::TokenizerFile;
use safetensors::SafeTensors;
use serde_json::json;
use tiny_files::{
    Gguf, Meta, Tensor, golden, is_matrix, layer_roles, open_safetensors, read_everything, safetensors, sharded,
    tiny_config, tiny_tensors,
};

fn open(name: &str) -> ModelFiles {
    let files = ModelFiles::open(&golden(name)).unwrap_or_else(|error| panic!("{error}"));
    read_everything(&files);
    files
}

/// Layers, hidden, heads, kv heads, head width, mlp, vocabulary: the numbers of a uniform model.
fn numbers(spec: &ModelSpec) -> [usize; 7] {
    let layer = &spec.layers[0];
    assert!(spec.layers.iter().all(|other| other == layer));
    let attn = &layer.attn;
    let mlp = layer.mlp.intermediate_size;
    [spec.layers.len(), spec.hidden_size, attn.heads, attn.kv_heads, attn.head_dim, mlp, spec.vocab_size]
}

#[test]
fn tiny_llama_opens_as_configured() {
    let ModelFiles { spec, tensors, text, end_tokens, source_name, identity, .. } = open("tiny-llama");
    assert_eq!(spec.family, "llama");
    assert_eq!(numbers(&spec), [3, 64, 4, 2, 16, 160, 515]);
    assert_eq!(spec.max_position_embeddings, 512);
    assert_eq!(spec.final_norm.eps, 1e-5);
    assert_eq!((spec.ropes[0].theta, spec.ropes[0].rotary_dim), (10_000.0, 16));
    assert_eq!(spec.ropes[0].scaling, RopeScaling::Default);
    assert_eq!(spec.layers[0].attn.scale, 0.25);
    assert!(!spec.tied_head && !spec.layers[0].attn.qkv_bias && spec.layers[0].attn.qk_norm.is_none());
    assert!(tensors.has(TensorRole::Head) && !tensors.has(TensorRole::QueryBias(0)));
    assert_eq!(tensors.matrix(TensorRole::Gate(2)).unwrap().dtype, DType::F32);
    assert_eq!(end_tokens, [514]);
    assert_eq!((text.bos_token.as_deref(), text.eos_token.as_deref()), (Some("<|endoftext|>"), Some("<|im_end|>")));
    assert!(text.chat_template.unwrap().starts_with("{{- bos_token }}"));
    assert!(matches!(text.tokenizer, Some(TokenizerFile::Json(bytes)) if bytes.starts_with(b"{")));
    assert_eq!(source_name, "tiny-llama");
    assert_eq!(identity.len(), 32);
}

#[test]
fn llama3_rope_reads_the_same_in_both_spellings() {
    let files = open("tiny-llama3-rope");
    assert_eq!(numbers(&files.spec), [2, 64, 4, 2, 32, 160, 520]);
    let llama3 = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64 };
    assert_eq!((files.spec.ropes[0].theta, &files.spec.ropes[0].scaling), (500_000.0, &llama3));
    assert_eq!(files.end_tokens, [512, 514]);
    assert!(files.spec.tied_head && !files.tensors.has(TensorRole::Head));
    let head = files.tensors.matrix(TensorRole::Head).unwrap();
    assert_eq!((head.dtype, head.rows, head.columns), (DType::BF16, 520, 64));

    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| std::fs::copy(golden("tiny-llama3-rope").join(from), folder.path().join(to));
    copy("config.v5.json", "config.json").unwrap();
    copy("model.safetensors", "model.safetensors").unwrap();
    let newer = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(newer.spec, files.spec);
    assert_eq!(newer.identity, files.identity);
    // Without generation_config.json the configuration's own id counts, and text files may be missing.
    assert_eq!(newer.end_tokens, [514]);
    assert!(newer.text.tokenizer.is_none() && newer.text.chat_template.is_none());
}

#[test]
fn qwen_models_open_as_configured() {
    let qwen2 = open("tiny-qwen2");
    assert_eq!((qwen2.spec.family, numbers(&qwen2.spec)), ("qwen2", [3, 64, 4, 1, 16, 160, 520]));
    assert!(qwen2.spec.layers[0].attn.qkv_bias && !qwen2.spec.tied_head);
    assert_eq!(qwen2.tensors.matrix(TensorRole::Embed).unwrap().dtype, DType::F16);
    assert_eq!(qwen2.tensors.vector(TensorRole::KeyBias(1)).unwrap().len(), 16);

    let qwen3 = open("tiny-qwen3");
    assert_eq!((qwen3.spec.family, numbers(&qwen3.spec)), ("qwen3", [3, 64, 4, 2, 32, 160, 520]));
    assert_eq!(qwen3.spec.layers[0].attn.qk_norm.unwrap().norm.eps, 1e-6);
    assert!(!qwen3.spec.layers[0].attn.qkv_bias && qwen3.spec.tied_head);
    assert_eq!(qwen3.tensors.vector(TensorRole::QueryNorm(2)).unwrap().len(), 32);
}

fn matrix(files: &ModelFiles, role: TensorRole) -> Vec<f32> {
    let matrix = files.tensors.matrix(role).unwrap();
    let mut values = vec![0.0; matrix.rows * matrix.columns];
    values.chunks_mut(matrix.columns).enumerate().for_each(|(row, out)| matrix.decode_row(row, out));
    values
}

/// The roles of matrices that `files` has.
fn matrix_roles(files: &ModelFiles) -> Vec<TensorRole> {
    let layers = (0..files.spec.layers.len()).flat_map(layer_roles);
    let wanted = |role: &TensorRole| is_matrix(*role) && (files.tensors.has(*role) || *role == TensorRole::Head);
    layers.chain([TensorRole::Embed, TensorRole::Head]).filter(wanted).collect()
}

#[test]
fn matrices_decode_to_the_numbers_in_the_file() {
    let file = std::fs::read(golden("tiny-qwen3/model.safetensors")).unwrap();
    let raw = SafeTensors::deserialize(&file).unwrap();
    let files = open("tiny-qwen3");
    for (role, name) in [
        (TensorRole::Embed, "model.embed_tokens.weight"),
        (TensorRole::Key(1), "model.layers.1.self_attn.k_proj.weight"),
        (TensorRole::Down(2), "model.layers.2.mlp.down_proj.weight"),
    ] {
        let words = raw.tensor(name).unwrap().data().chunks_exact(2);
        let expected: Vec<f32> = words.map(|word| half::bf16::from_le_bytes([word[0], word[1]]).to_f32()).collect();
        assert_eq!(matrix(&files, role), expected, "{name}");
    }
}

#[test]
fn gguf_of_every_architecture_equals_its_folder() {
    for (gguf, folder) in [("tiny-llama.F16", "tiny-llama"), ("tiny-qwen2.F16", "tiny-qwen2")] {
        let (gguf, folder) = (open(&format!("gguf/{gguf}.gguf")), open(folder));
        assert_eq!(gguf.spec, folder.spec);
        assert_eq!(gguf.end_tokens, folder.end_tokens);
        let roles = matrix_roles(&folder);
        assert_eq!(roles.len(), 3 * 7 + 2);
        for role in roles {
            assert_eq!(gguf.tensors.matrix(role).unwrap().dtype, DType::F16);
            // Half precision of the folder's numbers; for llama this also proves that query and key rows are put back
            // in order, because any other row would differ.
            let expected: Vec<f32> =
                matrix(&folder, role).into_iter().map(|value| half::f16::from_f32(value).to_f32()).collect();
            assert_eq!(matrix(&gguf, role), expected, "{role:?}");
        }
        for role in (0..3).flat_map(layer_roles).filter(|role| folder.tensors.has(*role)) {
            if !is_matrix(role) {
                assert_eq!(gguf.tensors.vector(role).unwrap(), folder.tensors.vector(role).unwrap(), "{role:?}");
            }
        }
    }
    let (gguf, folder) = (open("gguf/tiny-qwen3.Q8_0.gguf"), open("tiny-qwen3"));
    assert_eq!(gguf.spec, folder.spec);
    assert_close(&gguf, &folder, 127.0);
}

/// Quantised numbers lie within a step of the originals, which `levels` of the largest magnitude in a block gives.
fn assert_close(quantised: &ModelFiles, original: &ModelFiles, levels: f32) {
    for role in matrix_roles(original) {
        let (left, right) = (matrix(quantised, role), matrix(original, role));
        for (left, right) in left.chunks(32).zip(right.chunks(32)) {
            let step = right.iter().fold(0f32, |most, value| most.max(value.abs())) / levels;
            for (left, right) in left.iter().zip(right) {
                assert!((left - right).abs() <= step * 1.01, "{role:?}: {left} is not near {right}");
            }
        }
    }
}

#[test]
fn quantised_gguf_lies_near_the_original() {
    let original = open("tiny-llama");
    // Steps: a signed byte has 127; four and five bits with a sign have 8 and 16; with a minimum the range of the block,
    // at most twice the magnitude, is cut into 15 and 31.
    for (kind, dtype, levels) in [
        ("Q8_0", DType::Q8_0, 127.0),
        ("Q4_0", DType::Q4_0, 8.0),
        ("Q4_1", DType::Q4_1, 7.5),
        ("Q5_0", DType::Q5_0, 16.0),
        ("Q5_1", DType::Q5_1, 15.5),
    ] {
        let files = open(&format!("gguf/tiny-llama.{kind}.gguf"));
        assert_eq!(files.spec, original.spec);
        assert!(matrix_roles(&files).iter().all(|role| files.tensors.matrix(*role).unwrap().dtype == dtype));
        assert_close(&files, &original, levels);
        assert_ne!(files.identity, original.identity);
    }
}

#[test]
fn gguf_metadata_reaches_the_tokenizer() {
    let files = open("gguf/tiny-llama.F16.gguf");
    let Some(TokenizerFile::Gguf(vocab)) = files.text.tokenizer else { panic!("a vocabulary") };
    assert_eq!((vocab.model.as_str(), vocab.pre.as_deref()), ("gpt2", Some("gpt-2")));
    assert_eq!((vocab.tokens.len(), vocab.token_types.len(), vocab.merges.len()), (515, 515, 256));
    assert_eq!((&vocab.tokens[514][..], &vocab.merges[0][..]), ("<|im_end|>", "Ġ t"));
    assert_eq!((vocab.bos_token_id, vocab.eos_token_id, vocab.padding_token_id), (Some(512), Some(514), Some(512)));
    assert_eq!((vocab.unknown_token_id, vocab.add_bos_token), (None, false));
    assert_eq!(files.text.bos_token.as_deref(), Some("<|endoftext|>"));
    assert_eq!(files.text.eos_token.as_deref(), Some("<|im_end|>"));
    assert!(files.text.chat_template.unwrap().starts_with("{% for message in messages %}"));
}

#[test]
fn end_of_turn_and_end_of_message_end_an_output_too() {
    let base = || Gguf::tiny_llama().set("tokenizer.ggml.eot_token_id", Meta::U32(3));
    assert_eq!(base().open().unwrap().end_tokens, [7, 3]);
    let all = base().set("tokenizer.ggml.eom_token_id", Meta::U32(5));
    assert_eq!(all.open().unwrap().end_tokens, [7, 3, 5]);
    // Beyond the vocabulary: a way of saying "none".
    let none = base().set("tokenizer.ggml.eom_token_id", Meta::U32(u32::MAX));
    assert_eq!(none.open().unwrap().end_tokens, [7, 3]);
}

#[test]
fn llama3_vocabularies_start_with_bos_unless_the_file_says_otherwise() {
    let add_bos = |gguf: Gguf| match gguf.open().unwrap().text.tokenizer {
        Some(TokenizerFile::Gguf(vocab)) => vocab.add_bos_token,
        _ => panic!("a vocabulary"),
    };
    let silent = || Gguf::tiny_llama().without("tokenizer.ggml.add_bos_token");
    assert!(!add_bos(silent()));
    assert!(add_bos(silent().set("tokenizer.ggml.pre", Meta::Text("llama-bpe"))));
    assert!(!add_bos(Gguf::tiny_llama().set("tokenizer.ggml.pre", Meta::Text("llama-bpe"))));
    assert!(add_bos(silent().set("tokenizer.ggml.model", Meta::Text("llama"))));
}

#[test]
fn sharded_weights_equal_whole_ones() {
    let (folder, whole) = (sharded(), open("tiny-llama"));
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.spec, whole.spec);
    for role in matrix_roles(&whole) {
        assert_eq!(matrix(&files, role), matrix(&whole, role), "{role:?}");
    }
    assert_eq!(files.identity, whole.identity);
}

#[test]
fn templates_are_found_in_all_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.json", &tiny_config().to_string());
    std::fs::write(folder.path().join("model.safetensors"), safetensors(&tiny_tensors())).unwrap();
    let text = || ModelFiles::open(folder.path()).unwrap().text;
    assert_eq!(text().chat_template, None);
    write("special_tokens_map.json", r#"{"bos_token": "<old>", "eos_token": {"content": "<end>"}}"#);
    write(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null, "chat_template":
            [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
    );
    let found = text();
    assert_eq!(found.chat_template.as_deref(), Some("D"));
    assert_eq!((found.bos_token.as_deref(), found.eos_token.as_deref()), (Some("<s>"), Some("<end>")));
    write("chat_template.jinja", "J\n");
    assert_eq!(text().chat_template.as_deref(), Some("J\n"));
}

#[test]
fn generation_defaults_and_identity_belong_to_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let mut weights = safetensors(&tiny_tensors());
    write("config.json", tiny_config().to_string().as_bytes());
    write("model.safetensors", &weights);
    write(
        "generation_config.json",
        br#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [2, 7, 2, 99, -1]}"#,
    );
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.end_tokens, [2, 7]);
    let defaults = &files.defaults;
    assert_eq!((defaults.do_sample, defaults.temperature, defaults.top_k), (Some(true), Some(0.6), Some(20)));
    assert_eq!((defaults.top_p, defaults.min_p, defaults.repetition_penalty), (Some(0.95), None, None));
    assert_eq!(ModelFiles::open(folder.path()).unwrap().identity, files.identity);
    let last = weights.len() - 1;
    weights[last] ^= 1;
    write("model.safetensors", &weights);
    assert_ne!(ModelFiles::open(folder.path()).unwrap().identity, files.identity);
}

#[test]
fn gguf_files_may_suggest_sampling_too() {
    assert_eq!(Gguf::tiny_llama().open().unwrap().defaults.list(), []);
    let gguf = Gguf::tiny_llama()
        .set("general.sampling.temp", Meta::F32(0.7))
        .set("general.sampling.top_k", Meta::U32(20))
        .set("general.sampling.top_p", Meta::F32(0.95))
        .set("general.sampling.penalty_repeat", Meta::F32(1.05));
    let defaults = gguf.open().unwrap().defaults;
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (Some(0.7), Some(20), Some(0.95)));
    assert_eq!((defaults.min_p, defaults.repetition_penalty), (None, Some(1.05)));
}

#[test]
fn a_folder_with_one_gguf_file_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |word: &str| {
        let message = ModelFiles::open(folder.path()).err().expect("refused").to_string();
        assert!(message.contains(word), "{message}");
    };
    refused("neither config.json nor");
    std::fs::write(folder.path().join("a.gguf"), Gguf::tiny_llama().write().bytes).unwrap();
    read_everything(&ModelFiles::open(folder.path()).unwrap());
    std::fs::write(folder.path().join("b.gguf"), b"GGUF").unwrap();
    refused("2 .gguf files");
}

#[test]
fn attention_biases_are_read_with_and_without_one_on_the_output() {
    let mut config = tiny_config();
    config["attention_bias"] = json!(true);
    let mut tensors = tiny_tensors();
    for (name, width) in [("q", 32), ("k", 16), ("v", 16)] {
        tensors.push((format!("model.layers.0.self_attn.{name}_proj.bias"), vec![width], "F32"));
    }
    let files = open_safetensors(&config, safetensors(&tensors)).unwrap();
    assert!(files.spec.layers[0].attn.qkv_bias && !files.spec.layers[0].attn.output_bias);
    assert_eq!(files.tensors.vector(TensorRole::QueryBias(0)).unwrap()[1], 11.0 + 1.0 / 4096.0);
    tensors.push(("model.layers.0.self_attn.o_proj.bias".to_owned(), vec![32], "F32"));
    let files = open_safetensors(&config, safetensors(&tensors)).unwrap();
    assert!(files.spec.layers[0].attn.output_bias);
    assert_eq!(files.tensors.vector(TensorRole::OutputBias(0)).unwrap()[2], 14.0 + 2.0 / 4096.0);
}

#[test]
fn gguf_rope_settings_are_honoured() {
    let scaling = |gguf: Gguf| gguf.open().unwrap().spec.ropes[0].scaling.clone();
    let linear = || Gguf::tiny_llama().set("llama.rope.scaling.type", Meta::Text("linear"));
    assert_eq!(scaling(Gguf::tiny_llama()), RopeScaling::Default);
    assert_eq!(scaling(linear().set("llama.rope.scaling.factor", Meta::F32(4.0))), RopeScaling::Linear { factor: 4.0 });
    assert_eq!(
        scaling(Gguf::tiny_llama().set("llama.rope.scale_linear", Meta::F32(2.0))),
        RopeScaling::Linear { factor: 2.0 }
    );
    let none = Gguf::tiny_llama().set("llama.rope.scaling.type", Meta::Text("none"));
    assert_eq!(scaling(none.set("llama.rope.scaling.factor", Meta::F32(4.0))), RopeScaling::Default);

    let factors: Vec<f32> = (1..=8).map(|n| n as f32).collect();
    let mut gguf = Gguf::tiny_llama();
    let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let tensor = Tensor { name: "rope_freqs.weight".to_owned(), dimensions: vec![8], kind: 0, bytes };
    gguf.tensors.push(tensor);
    assert_eq!(scaling(gguf.clone()), RopeScaling::Factors { factors });
    let plain = octavo::model::rope::inverse_frequencies(&Gguf::tiny_llama().open().unwrap().spec.ropes[0], 64);
    let divided = octavo::model::rope::inverse_frequencies(&gguf.open().unwrap().spec.ropes[0], 64);
    assert_eq!(divided[3], plain[3] / 4.0);
    gguf.tensor("rope_freqs.weight").dimensions = vec![7];
    assert!(gguf.open().err().expect("refused").to_string().contains("7 elements, but 8"));
}

#[test]
fn version_two_files_open() {
    read_everything(&Gguf { version: 2, ..Gguf::tiny_llama() }.open().unwrap());
}

#[test]
fn gguf_llama_biases_are_put_back_in_order_too() {
    let mut gguf = Gguf::tiny_llama();
    for (name, width) in [("attn_q", 32), ("attn_k", 16), ("attn_v", 16)] {
        let bytes = (0..width).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let name = format!("blk.0.{name}.bias");
        gguf.tensors.push(Tensor { name, dimensions: vec![width], kind: 0, bytes });
    }
    let files = gguf.open().unwrap();
    read_everything(&files);
    // In the file, element 2i of a head of 16 rotates with 2i + 1; the model wants all first halves, then all second.
    let halves = |head: usize| (0..16).map(move |n| (head * 16 + n % 8 * 2 + n / 8) as f32);
    let query: Vec<f32> = halves(0).chain(halves(1)).collect();
    assert_eq!(files.tensors.vector(TensorRole::QueryBias(0)).unwrap(), query);
    assert_eq!(files.tensors.vector(TensorRole::KeyBias(0)).unwrap(), query[..16]);
    let value: Vec<f32> = (0..16).map(|n| n as f32).collect();
    assert_eq!(files.tensors.vector(TensorRole::ValueBias(0)).unwrap(), value);
}
