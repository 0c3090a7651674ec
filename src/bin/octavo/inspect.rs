//! `octavo inspect`: what a model is made of and what it needs, from its files alone. Needs no GPU.

mod describe;
mod families;

use crate::Outcome;
use crate::options::parse_dtype;
use crate::output;
use octavo::base::DType;
use octavo::config::{KvDtype, kv_bytes_per_token};
use octavo::engine::locate_model;
use octavo::error::{Error, Result};
use octavo::gpu::{AdapterChoice, adapter, list_adapters};
use octavo::model::files::{GenerationDefaults, ModelFiles};
use octavo::weights::pack::device_bytes;
use serde::Serialize;
use std::fmt::Write;

#[derive(clap::Args)]
pub struct Args {
    /// A Hugging Face folder, a .gguf file, or a hub id
    #[arg(value_name = "MODEL", required_unless_present = "families")]
    model: Option<String>,
    /// List the families of models that octavo runs, as a Markdown table
    #[arg(long, conflicts_with = "model")]
    families: bool,
    /// How keys and values would be stored
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KvDtype::ALL.map(KvDtype::name))]
    kv_dtype: String,
    /// Count full-precision matrices as if rounded to this format while loading
    #[arg(long, value_name = "TYPE", value_parser = crate::options::QUANTIZE)]
    quantize: Option<String>,
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
    attention: String,
    mlp: String,
    norms: String,
    positions: Vec<String>,
    /// What is done to embedded tokens and to logits.
    ends: Option<String>,
    vocab_size: usize,
    tied_head: bool,
    context: usize,
    parameters: u64,
    /// Those that one token reads; fewer where it has some of many experts.
    active_parameters: u64,
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
    let Some(model) = &args.model else {
        // A reader that left has no use for the rest.
        let _ = output::write(&families::table())?;
        return Ok(Outcome::Success);
    };
    let share = args.gpu_memory_utilization;
    if !(share > 0.0 && share <= 1.0) {
        return Err(Error::config(format!("--gpu-memory-utilization is {share}, but must be above 0 and at most 1")));
    }
    let files = ModelFiles::open(&locate_model(model)?)?;
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
    let quantize = args.quantize.as_deref().map(parse_dtype).transpose()?;
    let weight_bytes = files.tensors.infos().map(|info| device_bytes(info, quantize)).sum();
    let parameters = tensors.iter().map(|share| share.parameters).sum::<u64>();
    let kv_dtype: KvDtype = args.kv_dtype.parse()?;
    kv_dtype.check(spec)?;
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
        attention: describe::attention(spec),
        mlp: describe::mlp(spec),
        norms: describe::norms(spec),
        positions: describe::positions(spec),
        ends: describe::ends(spec),
        vocab_size: spec.vocab_size,
        tied_head: spec.tied_head,
        context: spec.max_position_embeddings,
        parameters,
        active_parameters: parameters.saturating_sub(describe::idle_parameters(spec)),
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

fn suggested(defaults: &GenerationDefaults) -> Vec<String> {
    defaults.list().into_iter().map(|(name, value)| format!("{name} {value}")).collect()
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
    let millions = |count: u64| format!("{:.1} M", count as f64 / 1e6);
    let active = match findings.active_parameters == findings.parameters {
        true => String::new(),
        false => format!(", {} for each token", millions(findings.active_parameters)),
    };
    row("parameters", format!("{}{active}", millions(findings.parameters)));
    row("shape", format!("{} layers, width {}", findings.layers, findings.hidden_size));
    row("attention", findings.attention.clone());
    row("MLP", findings.mlp.clone());
    row("norms", findings.norms.clone());
    for positions in &findings.positions {
        row("positions", positions.clone());
    }
    if let Some(ends) = &findings.ends {
        row("ends", ends.clone());
    }
    row("vocabulary", format!("{}{}", findings.vocab_size, if findings.tied_head { ", output head tied" } else { "" }));
    row("context", format!("{} tokens", findings.context));
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
