//! The rules that files keep among themselves: shaders and their table, slots and their contracts, structures and constants
//! on both sides of the bus, and who may import whom.

use naga::{Module, TypeInner};
use octavo::base::{DType, KV_CHUNK};
use octavo::gpu::{DeviceKind, Profile, reflect, shader, shader_paths};
use octavo::kernels::{self, act_mul, attn_combine, embed, experts, matmul, norm, norm_add, qk_norm, sample};
use octavo::layout::inputs::{BAD_LOGITS, ENTRIES_PER_SAMPLE, NONE, NOTHING_ALLOWED, SeqState, StepHeader};
use octavo::sampling::row;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// All files below a folder, as (path below it, text), in order.
fn files(root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_shader_is_embedded_but_the_contracts() {
    let on_disk: Vec<String> = files(&folder("shaders"))
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !name.ends_with("contract.wgsl"))
        .collect();
    let embedded: Vec<String> = shader_paths().map(str::to_owned).collect();
    assert_eq!(on_disk, embedded);
}

#[test]
fn shader_files_follow_their_conventions() {
    for (name, text) in files(&folder("shaders")) {
        if !name.ends_with("contract.wgsl") {
            assert!(text.starts_with("//!"), "{name} does not start with a header");
        }
        for line in text.lines() {
            let code = line.split("//").next().unwrap_or_default().trim();
            assert!(!code.starts_with("enable ") && !code.starts_with("requires "), "{name} has `{code}`");
            let sized = code.contains("@workgroup_size(") && !code.contains("@workgroup_size(WG_X, WG_Y, WG_Z)");
            assert!(!sized, "{name} has a workgroup size of its own: `{code}`");
        }
    }
}

/// A type as callers of a slot write it. A slot's own structures are its own business; their names are what counts.
fn show(module: &Module, ty: naga::Handle<naga::Type>) -> String {
    let ty = &module.types[ty];
    match (&ty.name, &ty.inner) {
        (Some(name), TypeInner::Struct { .. }) => name.clone(),
        (_, TypeInner::Pointer { base, space }) => format!("{space:?} pointer to {}", show(module, *base)),
        (_, TypeInner::Array { base, size, .. }) => format!("{size:?} of {}", show(module, *base)),
        (_, inner) => format!("{inner:?}"),
    }
}

/// What a caller of a slot sees: its functions with the types of arguments and results.
fn signatures(module: &Module) -> BTreeMap<String, String> {
    let functions = module.functions.iter().map(|(_, function)| {
        let arguments: Vec<String> = function.arguments.iter().map(|argument| show(module, argument.ty)).collect();
        let result = function.result.as_ref().map(|result| show(module, result.ty));
        (function.name.clone().unwrap(), format!("({}) -> {result:?}", arguments.join(", ")))
    });
    functions.collect()
}

/// The text of what a file uses, each once: libraries, and an implementation of each slot, that of the file's own name where
/// there is one.
fn used_by(name: &str, text: &str, seen: &mut Vec<PathBuf>) -> String {
    let own = Path::new(name).file_name().unwrap();
    let words =
        text.lines().filter_map(|line| line.strip_prefix("//! ")).map(|line| line.split(' ').collect::<Vec<_>>());
    let mut used = String::new();
    for words in words {
        for wanted in &words[1..] {
            let path = match words[0] {
                "use" => folder(&format!("shaders/{wanted}.wgsl")),
                "slot" => {
                    let slot = folder(&format!("shaders/slots/{wanted}"));
                    let mut files: Vec<PathBuf> =
                        std::fs::read_dir(&slot).unwrap().map(|f| f.unwrap().path()).collect();
                    files.retain(|file| !file.ends_with("contract.wgsl"));
                    let same = slot.join(own);
                    if files.contains(&same) { same } else { files.into_iter().max().unwrap() }
                }
                _ => continue,
            };
            if !seen.contains(&path) {
                seen.push(path.clone());
                let text = std::fs::read_to_string(&path).unwrap();
                used.push_str(&used_by(path.to_str().unwrap(), &text, seen));
                used.push_str(&text);
            }
        }
    }
    used
}

#[test]
fn slots_keep_their_contracts() {
    // Names that implementations take from the kernel that uses them.
    const AROUND: &str = "const WG_X: u32 = 8u; const HEAD_DIM: u32 = 64u; const HEADS: u32 = 4u; const KV_HEADS: u32 = 2u; const EPS: f32 = 1e-6;
        const TILE: u32 = 4u; const ROTARY_DIM: u32 = 64u;
        struct Params { blocks: u32, segments: u32, norm_eps: f32, out_stride: u32, out_offset: u32, row_count: u32, x_stride: u32, cap: f32, group_count: u32,
            first_sample: u32, sample_limit: u32, first_expert: u32, expert_count: u32, pairs_per_input: u32, turns_at: u32 }
        const WG_Y: u32 = 1u; const NORMED: bool = false; const SEGMENT_LANES: u32 = 1u;
        @group(0) @binding(20) var<uniform> params: Params;\n";
    let parse = |name: &str, text: &str| {
        let source = format!("{AROUND}{text}");
        naga::front::wgsl::parse_str(&source).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&source)))
    };
    let all = files(&folder("shaders/slots"));
    let mut checked = 0;
    for (contract, text) in all.iter().filter(|(name, _)| name.ends_with("/contract.wgsl")) {
        let slot = contract.strip_suffix("contract.wgsl").unwrap();
        // The types that pairs are stored as differ by design; what is stored does not.
        let strip = |mut signatures: BTreeMap<String, String>| {
            if let Some(signature) = signatures.get_mut("pack_pair") {
                *signature = signature.split(" -> ").take(1).collect();
            }
            signatures
        };
        let promised = strip(signatures(&parse(contract, text)));
        if slot == "matrix/" {
            // Types and a constant, which no function shows; the kernel does not link without them.
            checked += all.iter().filter(|(name, _)| name.starts_with(slot) && name != contract).count();
            continue;
        }
        assert!(!promised.is_empty(), "{contract} promises nothing");
        for (name, text) in all.iter().filter(|(name, _)| name.starts_with(slot) && name != contract) {
            let given = strip(signatures(&parse(name, &format!("{}{text}", used_by(name, text, &mut Vec::new())))));
            for (function, signature) in &promised {
                assert_eq!(given.get(function), Some(signature), "{name}: fn {function}");
            }
            checked += 1;
        }
    }
    let implementations = all.iter().filter(|(name, _)| !name.ends_with("contract.wgsl")).count();
    assert_eq!(checked, implementations, "some slots have no contract");
    for dtype in DType::ALL {
        assert!(all.iter().any(|(name, _)| *name == format!("weights/{dtype}.wgsl")), "{dtype} has no slot");
    }
}

/// Offsets of the members and size of a structure in a kernel, as the compiler sees them.
fn on_device(kernel: &str, name: &str) -> (Vec<(String, u32)>, u32) {
    let profile = Profile::baseline(DeviceKind::Cpu);
    let info = kernels::ALL.iter().find(|info| info.name == kernel).unwrap();
    let linked = shader::link(&(info.variants)(&profile)[0]).unwrap();
    let found = reflect::reflect(&linked).unwrap().structs.remove(name);
    found.unwrap_or_else(|| panic!("{kernel} has no struct {name}"))
}

/// Compares a Rust structure with the WGSL structure of the same name in the given kernel. Trailing room, `reserved*`, may
/// be split differently.
macro_rules! same_layout {
    ($kernel:expr, $type:ty, $name:literal, [$($field:ident),* $(,)?] $(, $($nested:expr),*)?) => {{
        let (members, size) = on_device($kernel, $name);
        let members: Vec<_> = members.into_iter().filter(|(name, _)| !name.starts_with("reserved")).collect();
        #[allow(unused_mut)]
        let mut ours: Vec<(String, u32)> = vec![$((stringify!($field).to_owned(), offset_of!($type, $field) as u32)),*];
        $($(ours.extend($nested);)*)?
        assert_eq!(members, ours, "{}", $name);
        // Uniform buffers may end anywhere; arrays of structures must have the same stride.
        assert_eq!(size as usize, size_of::<$type>(), "{}", $name);
    }};
}

#[test]
fn structures_have_the_same_layout_on_both_sides() {
    same_layout!(
        "resolve",
        StepHeader,
        "StepHeader",
        [
            row_count,
            decode_count,
            tile_count,
            sample_count,
            rows_at,
            tiles_at,
            samples_at,
            updates_at,
            update_count,
            table_stride,
            side_stride,
            lists_at,
            mask_at,
        ]
    );
    type Row = octavo::sampling::SamplingRow;
    let base = offset_of!(SeqState, sampling) as u32;
    let nested = [
        ("temperature", offset_of!(Row, temperature)),
        ("top_k", offset_of!(Row, top_k)),
        ("top_p", offset_of!(Row, top_p)),
        ("min_p", offset_of!(Row, min_p)),
        ("seed_low", offset_of!(Row, seed_low)),
        ("seed_high", offset_of!(Row, seed_high)),
        ("stop_count", offset_of!(Row, stop_count)),
        ("flags", offset_of!(Row, flags)),
        ("stops", offset_of!(Row, stops)),
        ("repetition_penalty", offset_of!(Row, repetition_penalty)),
        ("presence_penalty", offset_of!(Row, presence_penalty)),
        ("frequency_penalty", offset_of!(Row, frequency_penalty)),
        ("min_tokens", offset_of!(Row, min_tokens)),
        ("token_limit", offset_of!(Row, token_limit)),
        ("logprobs", offset_of!(Row, logprobs)),
        ("prompt_logprobs", offset_of!(Row, prompt_logprobs)),
    ];
    let nested: Vec<(String, u32)> = nested.into_iter().map(|(name, at)| (name.into(), base + at as u32)).collect();
    for kernel in ["resolve", "sample_scan", "sample_pick", "sample_logprobs"] {
        same_layout!(kernel, SeqState, "SeqState", [token, position, position_limit, done, prompt_len], nested.clone());
    }
    same_layout!("sample_pick", sample::Sampled, "Sampled", [token, largest, sum, logit, rank, key, path]);
    let (members, partial_bytes) = on_device("sample_scan", "Partial");
    assert_eq!(partial_bytes as usize, sample::PARTIAL_BYTES, "{members:?}");
    for kernel in ["sample_scan", "sample_pick", "sample_logprobs"] {
        same_layout!(
            kernel,
            sample::SampleParams,
            "SampleParams",
            [vocab_size, logits_stride, processed_at, processed_stride, block_count, first_sample, partials_stride]
        );
    }
    same_layout!("norm", norm::NormParams, "NormParams", [width, eps, first_sample]);
    same_layout!("norm_add", norm_add::NormAddParams, "NormAddParams", [width, eps, next_eps]);
    same_layout!("qk_norm", qk_norm::QkNormParams, "QkNormParams", [query_width, key_width, stride, eps]);
    same_layout!("combine_experts", experts::CombineExpertsParams, "CombineExpertsParams", [width]);
    same_layout!("embed", embed::EmbedParams, "EmbedParams", [blocks, first_entry, entry_count, scale]);
    same_layout!("act_mul", act_mul::ActMulParams, "ActMulParams", [width, rows_per_token]);
    same_layout!("attn_combine", attn_combine::CombineParams, "CombineParams", [chunk_stride]);
    same_layout!(
        "matmul",
        matmul::MatmulParams,
        "MatmulParams",
        [
            blocks,
            segments,
            group_count,
            row_count,
            out_offset,
            out_stride,
            x_stride,
            first_sample,
            sample_limit,
            first_expert,
            expert_count,
            pairs_per_input,
            cap,
            norm_eps,
            turns_at,
        ]
    );
}

#[test]
fn constants_are_the_same_on_both_sides() {
    let all: BTreeMap<String, String> = files(&folder("shaders")).into_iter().collect();
    let constant = |file: &str, name: &str| -> u64 {
        let text = &all[file];
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("const {name}: u32 = ")));
        let value = line.unwrap_or_else(|| panic!("{file} has no const {name}")).split(['u', ';']).next().unwrap();
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => value.parse().unwrap(),
        }
    };
    assert_eq!(constant("lib/step_inputs.wgsl", "NONE"), u64::from(NONE));
    assert_eq!(constant("lib/sample_params.wgsl", "BAD_LOGITS"), u64::from(BAD_LOGITS));
    assert_eq!(constant("lib/sample_params.wgsl", "NOTHING_ALLOWED"), u64::from(NOTHING_ALLOWED));
    assert_eq!(constant("lib/sample_params.wgsl", "DROPPED_KEY"), u64::from(sample::sort_key(f32::MIN)));
    let block = constant("lib/sample_params.wgsl", "GROUP_TOKENS") * constant("lib/sample_params.wgsl", "GROUP_COUNT");
    assert_eq!(block, sample::VOCAB_BLOCK as u64);
    for (name, value) in
        [("KEEPS_HISTORY", row::KEEPS_HISTORY), ("HAS_LISTS", row::HAS_LISTS), ("HAS_MASK", row::HAS_MASK)]
    {
        assert_eq!(constant("lib/seq_state.wgsl", name), u64::from(value), "{name}");
    }
    let logprobs = "kernels/sample_logprobs.wgsl";
    assert_eq!(constant(logprobs, "MAX_DEVICE_LOGPROBS"), u64::from(row::MAX_DEVICE_LOGPROBS));
    assert_eq!(constant(logprobs, "SAMPLE_WORDS") as usize * 4, size_of::<sample::Sampled>());
    assert_eq!(ENTRIES_PER_SAMPLE * 8, size_of::<sample::Sampled>());
    assert_eq!(constant(logprobs, "RANK_AT") as usize * 4, offset_of!(sample::Sampled, rank));
    for (path, name) in ["GIVEN", "LARGEST", "UNFILTERED", "SORTED", "SEARCHED"].iter().enumerate() {
        assert_eq!(constant("kernels/sample_pick.wgsl", name), path as u64);
    }
    assert_eq!(constant("lib/chunk.wgsl", "KV_CHUNK"), KV_CHUNK as u64);
    assert_eq!(constant("lib/routes.wgsl", "NO_PAIR"), u64::from(NONE));
    // Whoever writes NONE as a number means that number; the block size is written as a shift and a mask.
    assert!(
        all["kernels/rope_kv.wgsl"].contains("row.z == 0xffffffffu") || all["kernels/rope_kv.wgsl"].contains("NONE")
    );
    assert_eq!(1 << 4, octavo::base::BLOCK_TOKENS);
    for name in ["kernels/resolve.wgsl", "kernels/attention.wgsl"] {
        assert!(all[name].contains("position >> 4u") && all[name].contains("position & 15u"), "{name}");
    }
    // The bit that makes an update's address one of the block table.
    assert!(all["kernels/update.wgsl"].contains("(address & 0x80000000u) != 0u"));
    let inputs = std::fs::read_to_string(folder("src/layout/inputs.rs")).unwrap();
    assert!(inputs.contains("const TABLE_ADDRESS: u32 = 1 << 31;"));
}

/// Code of a Rust file without comments and without its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn modules_import_only_what_they_may() {
    // (files, what their code must not say, files that may).
    let rules: &[(&str, &[&str], &[&str])] = &[
        ("sched/", &["wgpu", "Instant", "std::thread", "rand::", "gpu::", "kernels::"], &["sched/tests/"]),
        ("cache/", &["wgpu", "Instant", "std::thread", "rand::", "gpu::", "kernels::"], &[]),
        ("layout/", &["wgpu", "Instant", "std::thread", "rand::", "gpu::", "kernels::"], &[]),
        ("sampling/", &["wgpu", "Instant", "std::thread", "rand::", "gpu::"], &[]),
        ("base/", &["wgpu", "crate::gpu", "crate::model", "crate::sched"], &[]),
        (
            "gpu/",
            &["crate::model", "crate::sched", "crate::kernels", "crate::cache", "crate::layout", "TokenId", "SeqId"],
            &[],
        ),
        (
            "kernels/",
            &["crate::sched", "crate::engine", "crate::runner", "SeqId", "SeqState", "RequestId"],
            &["kernels/self_test"],
        ),
        ("quant/", &["wgpu::", "crate::gpu", "crate::model"], &[]),
        ("weights/", &["wgpu::", "crate::gpu"], &[]),
        ("reference/", &["wgpu::", "crate::gpu", "crate::kernels"], &[]),
        ("model/", &["wgpu::", "crate::gpu", "crate::engine", "crate::runner"], &[]),
        // Only gpu calls wgpu. `runner::wgpu` is a module of ours.
        ("", &["wgpu::Device", "wgpu::Queue", "wgpu::Buffer", "wgpu::Instance", "use wgpu"], &["gpu/"]),
    ];
    let all = files(&folder("src"));
    for (prefix, forbidden, exempt) in rules {
        let inside = all.iter().filter(|(name, _)| name.starts_with(prefix) && name.ends_with(".rs"));
        let mut count = 0;
        for (name, text) in inside.filter(|(name, _)| !exempt.iter().any(|exempt| name.starts_with(exempt))) {
            let code = code(text);
            for word in *forbidden {
                let line = code.lines().find(|line| line.contains(word));
                assert!(line.is_none(), "src/{name} must not know {word}: `{}`", line.unwrap_or_default().trim());
            }
            count += 1;
        }
        assert!(count > 0, "no file below src/{prefix}: the rule guards nothing");
    }
}

#[test]
fn twins_bear_the_names_of_their_kernels() {
    let twins = std::fs::read_to_string(folder("src/reference/mod.rs")).unwrap();
    // Kernels without a twin move integers or merge what `attention` defines; the sampler's passes have one for each
    // thing they do.
    let twin_of = |kernel: &'static str| match kernel {
        "resolve" | "update" => None,
        "attn_combine" => Some("attention"),
        "sample_pick" => Some("sample"),
        "sample_scan" => Some("process"),
        "sample_logprobs" => Some("score"),
        "matmul_units" => Some("matmul"),
        "norm_add" | "qk_norm" => Some("norm"),
        "route_experts" | "group_experts" | "combine_experts" => Some("experts"),
        other => Some(other),
    };
    for kernel in kernels::ALL {
        if let Some(twin) = twin_of(kernel.name) {
            assert!(twins.contains(&format!("pub mod {twin};")), "{} has no twin", kernel.name);
        }
    }
}
