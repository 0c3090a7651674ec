//! Models that cannot be opened: every refusal says what is wrong and what would be right.

mod tiny_files;

use octavo::error::ErrorKind;
use octavo::model::Config;
use octavo::model::files::ModelFiles;
use serde_json::{Value as Json, json};
use tiny_files::{
    Gguf, HIDDEN, Meta, open_gguf, open_safetensors, read_everything, safetensors, sharded, tiny_config, tiny_tensors,
    write_index,
};

fn refusal(config: &Json) -> String {
    open_safetensors(config, safetensors(&tiny_tensors()))
        .err()
        .unwrap_or_else(|| panic!("{config} opened"))
        .to_string()
}

#[test]
fn a_wrong_index_is_refused() {
    let folder = sharded();
    let refused = |word: &str| {
        let message = ModelFiles::open(folder.path()).err().expect("refused").to_string();
        assert!(message.contains(word), "{message}");
    };
    let path = folder.path().join("model.safetensors.index.json");
    let index: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let with = |tensor: &str, file: &str| {
        let mut index = index.clone();
        index["weight_map"][tensor] = json!(file);
        write_index(folder.path(), &index);
    };
    with("extra", "model-0.safetensors");
    refused("extra");
    with("extra", "../elsewhere.safetensors");
    refused("not a file of the model's folder");
    with("extra", "model-9.safetensors");
    refused("model-9.safetensors");
    write_index(folder.path(), &json!({"weight_map": {}}));
    refused("empty");
    write_index(folder.path(), &json!({}));
    refused("weight_map");
    write_index(folder.path(), &index);
    std::fs::write(folder.path().join("model-1.safetensors"), b"").unwrap();
    refused("empty");
}

#[test]
fn paths_that_are_no_model_say_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let cases = [
        (folder.path().join("nowhere"), "no such folder or file"),
        (file("empty.gguf", b""), "empty"),
        (file("text.gguf", b"hello, world"), "not a GGUF file"),
        (file("model.safetensors", b"........"), "give the folder"),
    ];
    for (path, word) in cases {
        let error = ModelFiles::open(&path).err().expect("refused");
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Load);
        assert!(message.contains(word) && message.contains(&path.display().to_string()), "{message}");
    }
    file("config.json", tiny_config().to_string().as_bytes());
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let message = ModelFiles::open(folder.path()).err().expect("refused").to_string();
    assert!(message.contains("neither model.safetensors nor"), "{message}");
}

#[test]
fn unsupported_configurations_are_refused_by_name() {
    let cases = [
        ("architectures", json!(["MambaForCausalLM"]), "MambaForCausalLM is not supported"),
        ("architectures", json!(["MambaForCausalLM"]), "Qwen3ForCausalLM"),
        ("hidden_act", json!("gelu"), "hidden_act gelu"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("quantization_config", json!({"quant_method": "gptq"}), "gptq"),
        ("rope_scaling", json!({"type": "ntk", "factor": 2.0}), "rope scaling of type ntk"),
        ("rope_parameters", json!({"rope_type": "longrope"}), "longrope lacks short_factor"),
        ("num_key_value_heads", json!(3), "between 1 and 2"),
        ("num_hidden_layers", json!(2), "model.layers.1.input_layernorm.weight is missing"),
        ("num_hidden_layers", json!(1_000_000_000), "number of layers"),
        ("intermediate_size", json!(96), "[64, 32], but the model's configuration asks for [96, 32]"),
        ("hidden_size", json!(null), "hidden_size is missing"),
        ("hidden_size", json!("wide"), "hidden_size should be a whole number"),
        ("tie_word_embeddings", json!(false), "lm_head.weight is missing"),
        ("attention_bias", json!(true), "q_proj.bias is missing"),
        ("rms_norm_eps", json!(0), "epsilon"),
    ];
    for (key, value, word) in cases {
        let mut config = tiny_config();
        config[key] = value;
        let message = refusal(&config);
        assert!(message.contains(word), "{key}: {message}");
    }
}

#[test]
fn settings_of_one_family_are_refused_by_name() {
    let cases = [
        ("Qwen3ForCausalLM", "layer_types", json!(["sliding_attention"]), "sliding_window is missing"),
        ("Qwen3ForCausalLM", "layer_types", json!(["chunked_attention"]), "chunked_attention"),
        ("Qwen2ForCausalLM", "layer_types", json!(["full_attention", "full_attention"]), "2 entries for 1 layers"),
        ("Qwen3MoeForCausalLM", "num_experts", json!(1 << 17), "number of experts in all layers"),
        ("Qwen3MoeForCausalLM", "num_experts_per_tok", json!(9), "compute a token is 9"),
        ("Gemma2ForCausalLM", "query_pre_attn_scalar", json!(-1), "query_pre_attn_scalar is -1"),
        ("Gemma2ForCausalLM", "final_logit_softcapping", json!(-30.0), "final_logit_softcapping is -30"),
        ("Gemma3ForCausalLM", "use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("Gemma3ForCausalLM", "rope_local_base_freq", json!(0), "base is 0"),
        ("SmolLM3ForCausalLM", "no_rope_layers", json!([1, 0]), "no_rope_layers has 2 entries for 1 layers"),
        ("GPT2LMHeadModel", "add_cross_attention", json!(true), "add_cross_attention"),
        ("GPT2LMHeadModel", "activation_function", json!("gelu"), "activation_function gelu"),
        ("GPT2LMHeadModel", "n_positions", json!(null), "n_positions is missing"),
    ];
    for (class, key, value, word) in cases {
        let mut config = tiny_config();
        config["architectures"] = json!([class]);
        let extra = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "n_embd": HIDDEN, "n_head": 2, "n_layer": 1, "n_positions": 64});
        for (key, value) in extra.as_object().unwrap() {
            config[key] = value.clone();
        }
        if class.starts_with("Gemma") {
            config["hidden_activation"] = json!("gelu_pytorch_tanh");
        }
        config[key] = value;
        let message = refusal(&config);
        assert!(message.contains(word), "{class} {key}: {message}");
    }
}

#[test]
fn optional_settings_have_the_defaults_of_their_class() {
    let mut config = tiny_config();
    for key in ["head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings"] {
        config.as_object_mut().unwrap().remove(key);
    }
    // One key-value head is no longer configured, so there must be as many as query heads.
    assert!(
        refusal(&config).contains("k_proj.weight has shape [16, 32], but the model's configuration asks for [32, 32]")
    );
    config["num_key_value_heads"] = json!(1);
    let spec = open_safetensors(&config, safetensors(&tiny_tensors())).unwrap().spec;
    assert_eq!((spec.layers[0].attn.head_dim, spec.final_norm.eps), (16, 1e-6));
    assert_eq!((spec.ropes[0].theta, spec.tied_head), (10_000.0, true));

    // A head in the file, and nothing said about tying: these classes use it.
    let mut tensors = tiny_tensors();
    tensors.push(("lm_head.weight".to_owned(), vec![tiny_files::VOCAB, tiny_files::HIDDEN], "F32"));
    assert!(!open_safetensors(&config, safetensors(&tensors)).unwrap().spec.tied_head);

    // Qwen3's head width does not follow from the hidden size.
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    assert!(refusal(&config).contains("[256, 32]"));
}

#[test]
fn tensors_of_other_types_matter_only_if_they_are_used() {
    let mut tensors = tiny_tensors();
    tensors.push(("model.layers.0.self_attn.rotary_emb.positions".to_owned(), vec![3], "I32"));
    read_everything(&open_safetensors(&tiny_config(), safetensors(&tensors)).unwrap());
    tensors[3].2 = "I32";
    let message = open_safetensors(&tiny_config(), safetensors(&tensors)).err().expect("refused").to_string();
    assert!(
        message.contains("q_proj.weight has type I32") && message.contains("supported: F32, F16, BF16"),
        "{message}"
    );
}

#[test]
fn unsupported_gguf_files_are_refused_by_name() {
    let refused = |gguf: Gguf, word: &str| {
        let message = gguf.open().err().unwrap_or_else(|| panic!("opened despite {word}")).to_string();
        assert!(message.contains(word), "{message}");
    };
    let base = Gguf::tiny_llama;
    let with = |key: &str, value| base().set(key, value);
    refused(with("general.architecture", Meta::Text("mamba")), "mamba is not supported; supported: LlamaForCausalLM");
    refused(base().without("general.architecture"), "general.architecture is missing");
    refused(base().without("llama.block_count"), "llama.block_count is missing");
    refused(base().without("blk.0.ffn_up.weight"), "blk.0.ffn_up.weight is missing");
    refused(base().without("token_embd.weight"), "token_embd.weight is missing");
    refused(with("llama.expert_count", Meta::U32(8)), "8 experts");
    refused(with("llama.rope.scaling.type", Meta::Text("ntk")), "rope scaling of type ntk");
    refused(with("llama.rope.scaling.type", Meta::Text("longrope")), "rope_factors_long.weight");
    refused(with("llama.attention.head_count_kv", Meta::I32s(vec![1])), "head_count_kv should be a whole number");
    refused(with("llama.attention.value_length", Meta::U32(8)), "values of 8");
    refused(with("llama.embedding_length", Meta::Text("64")), "should be a whole number, but is a text");
    refused(with("split.count", Meta::U32(2)), "split");
    refused(with("general.alignment", Meta::U32(24)), "general.alignment");
    refused(with("tokenizer.ggml.tokens", Meta::Texts(vec!["x".to_owned(); 9])), "9 tokens");
    refused(Gguf { version: 1, ..base() }, "version 1");
    refused(Gguf { version: 3 << 24, ..base() }, "big-endian");

    let edited = |edit: fn(&mut Gguf)| {
        let mut gguf = base();
        edit(&mut gguf);
        gguf
    };
    let unread = edited(|gguf| gguf.tensor("blk.0.attn_v.weight").kind = 19);
    refused(unread, "blk.0.attn_v.weight has type IQ1_S, which octavo does not read yet; supported: F32, F16");
    let k_quant = edited(|gguf| gguf.tensor("blk.0.attn_v.weight").kind = 12);
    refused(k_quant, "[32, 16] in q4_k");
    refused(edited(|gguf| gguf.tensor("blk.0.attn_v.weight").kind = 77), "type number 77");
    refused(edited(|gguf| gguf.tensor("blk.0.attn_v.weight").dimensions = vec![33, 16]), "[33, 16] in q8_0");
    refused(edited(|gguf| gguf.tensor("blk.0.attn_v.weight").dimensions = vec![32, 0]), "[32, 0]");
    refused(edited(|gguf| gguf.tensor("blk.0.attn_v.weight").dimensions = vec![32, 8]), "has shape [8, 32]");
    refused(edited(|gguf| gguf.tensor("blk.0.attn_v.weight").dimensions = vec![32, 17]), "overlap");
    refused(edited(|gguf| gguf.tensor("blk.0.ffn_down.weight").dimensions = vec![64, 1 << 20]), "cut short");
    refused(edited(|gguf| gguf.tensor("blk.0.ffn_down.weight").dimensions = vec![1; 5]), "5 dimensions");
    refused(edited(|gguf| gguf.tensors[4].name = gguf.tensors[3].name.clone()), "two tensors called");
    refused(edited(|gguf| gguf.pairs.push(gguf.pairs[1].clone())), "llama.context_length occurs twice");
}

#[test]
fn a_configuration_must_be_an_object() {
    for (text, word) in [("[]", "not a JSON object"), ("{", "not valid JSON"), ("", "not valid JSON")] {
        let message = Config::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn misaligned_gguf_tensors_are_refused() {
    let written = Gguf::tiny_llama().write();
    let mut bytes = written.bytes;
    // The last field of the header is the offset of the last tensor.
    let (at, width) = *written.fields.last().unwrap();
    let offset = u64::from_le_bytes(bytes[at..at + width].try_into().unwrap());
    bytes[at..at + width].copy_from_slice(&(offset - 1).to_le_bytes());
    let message = open_gguf(bytes).err().expect("refused").to_string();
    assert!(message.contains("blk.0.ffn_down.weight starts at") && message.contains("multiple of 32"), "{message}");
}
