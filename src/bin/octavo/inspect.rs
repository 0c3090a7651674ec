//! `octavo inspect`: what a model is made of and what it needs, from its files alone. Needs no GPU.

use crate::Outcome;
use crate::output;
use octavo::base::DType;
use octavo::config::{KvDtype, kv_bytes_per_token};
use octavo::engine::locate_model;
use octavo::error::{Error, Result};
use octavo::gpu::{AdapterChoice, adapter, list_adapters};
use octavo::model::files::{GenerationDefaults, ModelFiles};
use octavo::model::spec::{ModelSpec, RopeScaling};
use serde::Serialize;
use std::fmt::Write;

#[derive(clap::Args)]
pub struct Args {
    /// A Hugging Face folder, a .gguf file, or a hub id
    #[arg(value_name = "MODEL")]
    model: String,
    /// How keys and values would be stored
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = ["f16", "f32"])]
    kv_dtype: String,
    /// Device memory to fit into, in MiB [default: what this computer has free]
    #[arg(long, value_name = "MIB")]
    memory_limit: Option<u64>,
    /// Share of that memory that may be used
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    gpu_memory_utilization: f64,
    /// Write the findings as a JSON line
    #[arg(long)]
    json: bool,
}

/// The findings.
#[derive(Serialize)]
struct Findings {
    model: String,
    architecture: &'static str,
    layers: usize,
    hidden_size: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate_size: usize,
    vocab_size: usize,
    tied_head: bool,
    context: usize,
    rope: String,
    parameters: u64,
    tensors: Vec<FormatShare>,
    weight_bytes: u64,
    kv_dtype: &'static str,
    kv_bytes_per_token: u64,
    full_context_bytes: u64,
    memory: Option<Memory>,
    tokenizer: bool,
    chat_template: bool,
    end_tokens: Vec<u32>,
    suggested_sampling: Vec<String>,
}

#[derive(Serialize)]
struct FormatShare {
    format: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Memory {
    /// Where the number comes from.
    source: String,
    usable_bytes: u64,
    /// Longest context whose KV fits beside the weights, at most the model's.
    context_that_fits: usize,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let share = args.gpu_memory_utilization;
    if !(share > 0.0 && share <= 1.0) {
        return Err(Error::config(format!("--gpu-memory-utilization is {share}, but must be above 0 and at most 1")));
    }
    let files = ModelFiles::open(&locate_model(&args.model)?)?;
    let findings = findings(&files, args)?;
    // A reader that left has no use for the rest.
    let _ = match args.json {
        true => output::write_json(&findings)?,
        false => output::write(&table(&findings))?,
    };
    Ok(Outcome::Success)
}

fn findings(files: &ModelFiles, args: &Args) -> Result<Findings> {
    let spec = &files.spec;
    let layer = spec.layers.first().ok_or_else(|| Error::load("the model has no layers"))?;
    let tensors = by_format(files);
    let weight_bytes = tensors.iter().map(|share| share.bytes).sum();
    let kv_dtype: KvDtype = args.kv_dtype.parse()?;
    let kv_bytes = kv_bytes_per_token(spec, kv_dtype);
    let memory = memory_here(args).map(|(source, bytes, most_kv)| {
        let usable_bytes = (bytes as f64 * args.gpu_memory_utilization) as u64;
        let kv = usable_bytes.saturating_sub(weight_bytes).min(most_kv);
        let tokens = (kv / kv_bytes.max(1)) as usize;
        Memory { source, usable_bytes, context_that_fits: tokens.min(spec.max_position_embeddings) }
    });
    Ok(Findings {
        model: files.source_name.clone(),
        architecture: spec.family,
        layers: spec.layers.len(),
        hidden_size: spec.hidden_size,
        heads: layer.attn.heads,
        kv_heads: layer.attn.kv_heads,
        head_dim: layer.attn.head_dim,
        intermediate_size: layer.mlp.intermediate_size,
        vocab_size: spec.vocab_size,
        tied_head: spec.tied_head,
        context: spec.max_position_embeddings,
        rope: rope(spec),
        parameters: tensors.iter().map(|share| share.parameters).sum(),
        tensors,
        weight_bytes,
        kv_dtype: kv_dtype.name(),
        kv_bytes_per_token: kv_bytes,
        full_context_bytes: weight_bytes + kv_bytes * spec.max_position_embeddings as u64,
        memory,
        tokenizer: files.text.tokenizer.is_some(),
        chat_template: files.text.chat_template.is_some(),
        end_tokens: files.end_tokens.clone(),
        suggested_sampling: suggested(&files.defaults),
    })
}

fn by_format(files: &ModelFiles) -> Vec<FormatShare> {
    let share = |dtype: DType| {
        let of_type = || files.tensors.infos().filter(move |info| info.dtype == dtype);
        let parameters = of_type().map(|info| info.shape.iter().product::<usize>()).sum::<usize>();
        let bytes = parameters / dtype.block_elements() * dtype.block_bytes();
        FormatShare {
            format: dtype.name(),
            tensors: of_type().count(),
            parameters: parameters as u64,
            bytes: bytes as u64,
        }
    };
    DType::ALL.into_iter().map(share).filter(|share| share.tensors > 0).collect()
}

fn rope(spec: &ModelSpec) -> String {
    let Some(rope) = spec.ropes.first() else { return "none".into() };
    let scaling = match &rope.scaling {
        RopeScaling::Default => String::new(),
        RopeScaling::Linear { factor } => format!(", linear x{factor}"),
        RopeScaling::Llama3 { factor, original_context, .. } => format!(", llama3 x{factor} of {original_context}"),
        #[allow(unreachable_patterns)] // scalings of later families
        _ => ", scaled".into(),
    };
    format!("theta {}, {} of {} dimensions{scaling}", rope.theta, rope.rotary_dim, spec.layers[0].attn.head_dim)
}

fn suggested(defaults: &GenerationDefaults) -> Vec<String> {
    let GenerationDefaults { do_sample, temperature, top_k, top_p, min_p, repetition_penalty } = defaults;
    let mut list = Vec::new();
    let mut note = |name: &str, value: Option<String>| list.extend(value.map(|value| format!("{name} {value}")));
    note("do_sample", do_sample.map(|value| value.to_string()));
    note("temperature", temperature.map(|value| value.to_string()));
    note("top_k", top_k.map(|value| value.to_string()));
    note("top_p", top_p.map(|value| value.to_string()));
    note("min_p", min_p.map(|value| value.to_string()));
    note("repetition_penalty", repetition_penalty.map(|value| value.to_string()));
    list
}

/// What the engine would count on: whose memory, its bytes, and the most KV cache it would take of it.
fn memory_here(args: &Args) -> Option<(String, u64, u64)> {
    if let Some(mib) = args.memory_limit {
        return Some(("--memory-limit".into(), mib.saturating_mul(1 << 20), u64::MAX));
    }
    let best = adapter::choose(list_adapters().ok()?, &AdapterChoice::Best).ok()?;
    let profile = best.profile;
    let source = format!("assumed of {}; --memory-limit says otherwise", profile.name);
    Some((source, profile.assumed_memory(), profile.assumed_kv_bytes()))
}

fn table(findings: &Findings) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        writeln!(text, "{name:<20}{value}").expect("writing to a text cannot fail");
    };
    row("model", findings.model.clone());
    row("architecture", findings.architecture.into());
    row("parameters", format!("{:.1} M", findings.parameters as f64 / 1e6));
    row(
        "shape",
        format!(
            "{} layers, width {}, {} heads of {} ({} for keys and values), MLP {}",
            findings.layers,
            findings.hidden_size,
            findings.heads,
            findings.head_dim,
            findings.kv_heads,
            findings.intermediate_size
        ),
    );
    row("vocabulary", format!("{}{}", findings.vocab_size, if findings.tied_head { ", output head tied" } else { "" }));
    row("context", format!("{} tokens", findings.context));
    row("rope", findings.rope.clone());
    for share in &findings.tensors {
        let FormatShare { format, tensors, bytes, .. } = share;
        row(&format!("tensors in {format}"), format!("{tensors}, {}", size(*bytes)));
    }
    row("weights", size(findings.weight_bytes));
    let kv = findings.kv_bytes_per_token;
    row("KV per token", format!("{kv} bytes ({})", findings.kv_dtype));
    row("full context", format!("{} with weights", size(findings.full_context_bytes)));
    if let Some(Memory { source, usable_bytes, context_that_fits }) = &findings.memory {
        row("fits here", format!("{context_that_fits} tokens in {} ({source})", size(*usable_bytes)));
    }
    let there = |found: bool| if found { "yes" } else { "none" };
    row("tokenizer", there(findings.tokenizer).into());
    row("chat template", there(findings.chat_template).into());
    row("end tokens", format!("{:?}", findings.end_tokens));
    if !findings.suggested_sampling.is_empty() {
        row("suggested sampling", findings.suggested_sampling.join(", "));
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
