//! The code map of the crate docs, kept true: which module may name which, and words that must not occur in some.

use std::fs;
use std::path::{Path, PathBuf};

/// Module, and the modules of this crate that it may name besides itself.
const MAY_USE: [(&str, &[&str]); 24] = [
    ("base", &[]),
    ("error", &[]),
    ("sampling", &["base", "error"]),
    ("cache", &["base"]),
    ("sched", &["base", "cache", "error", "runner", "sampling"]),
    ("layout", &["base", "sampling", "sched"]),
    ("gpu", &["error"]),
    ("kernels", &["base", "config", "error", "gpu", "model"]),
    // Compares kernels with their twins, so it needs both.
    (
        "kernels::self_test",
        &["base", "config", "error", "gpu", "kernels", "layout", "model", "quant", "reference", "sampling", "weights"],
    ),
    ("reference", &["base", "config", "error", "layout", "model", "quant", "runner", "sampling", "sched", "weights"]),
    ("quant", &["base"]),
    ("weights", &["base", "error", "model", "quant"]),
    ("model", &["base", "error", "text", "weights"]),
    (
        "runner",
        &[
            "base", "cache", "config", "error", "gpu", "kernels", "layout", "model", "quant", "sampling", "sched",
            "weights",
        ],
    ),
    ("text", &["base", "error"]),
    ("engine", &["base", "cache", "config", "error", "metrics", "runner", "sampling", "sched", "text", "trace"]),
    ("llm", &["base", "config", "engine", "error", "model", "runner", "sampling", "structured", "text"]),
    ("structured", &["base", "error", "sampling", "text"]),
    ("config", &["base", "error", "model", "quant", "sched"]),
    ("metrics", &["base", "engine", "sched"]),
    ("plot", &["error", "metrics"]),
    ("sim", &["base", "error", "metrics", "runner", "sampling", "sched", "trace"]),
    ("trace", &["base", "error", "plot", "runner", "sampling", "sched"]),
    // Re-exports what applications need.
    ("lib", &[]),
];

/// Modules, and text that their code must not contain.
const NEVER: [(&[&str], &[&str]); 4] = [
    (&["sched", "cache", "layout"], &["wgpu", "Instant", "SystemTime", "std::thread", "rand::"]),
    (&["gpu"], &["TokenId", "SeqId", "LayerIdx", "StepPlan", "Sequence"]),
    (&["trace", "plot"], &["Instant", "SystemTime", "std::thread"]),
    (&["engine"], &["WgpuRunner", "runner::wgpu", "wgpu::"]),
];

struct Source {
    path: PathBuf,
    module: String,
    code: String,
}

/// The library's files without comments and without the tests at their ends.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(&root).unwrap();
            let mut module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
            if inside.with_extension("").starts_with("kernels/self_test") {
                module = "kernels::self_test".into();
            }
            if module == "bin" || inside.iter().any(|part| part == "tests" || part == "tests.rs") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                sources.push(Source { module, code: code.collect::<Vec<_>>().join("\n"), path });
            }
        }
    }
    sources
}

/// The identifier after each `crate::`.
fn named_modules(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("crate::").map(|(at, found)| {
        let rest = &code[at + found.len()..];
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    })
}

#[test]
fn modules_name_only_what_the_code_map_allows() {
    let sources = sources();
    let modules: Vec<&str> = MAY_USE.iter().map(|(module, _)| *module).collect();
    let mut faults = Vec::new();
    for Source { path, module, code } in &sources {
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| name == module) else {
            faults.push(format!("{}: the module {module} is not in the code map", path.display()));
            continue;
        };
        for name in named_modules(code) {
            // A name that is no module is something the root re-exports: only applications import it from there.
            if name != module && !allowed.contains(&name) {
                let what = if modules.contains(&name) { "may not use" } else { "names something that is no module:" };
                faults.push(format!("{}: {module} {what} {name}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for module in modules {
        assert!(sources.iter().any(|source| source.module == module), "the code map names {module}, which is gone");
    }
}

#[test]
fn only_gpu_calls_wgpu_and_pure_modules_stay_pure() {
    let mut faults = Vec::new();
    for Source { path, module, code } in &sources() {
        for (modules, words) in NEVER {
            let found = words.iter().filter(|word| modules.contains(&module.as_str()) && code.contains(**word));
            faults.extend(found.map(|word| format!("{}: `{word}` has no place in {module}", path.display())));
        }
        // `runner::wgpu` is a module of ours; what must not appear is the other crate.
        let foreign = code.replace("runner::wgpu::", "").replace("super::wgpu::", "");
        if module != "gpu" && foreign.contains("wgpu::") {
            faults.push(format!("{}: only gpu may call wgpu", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_path_is_read_up_to_the_end_of_its_name() {
    let code = "use crate::base::TokenId;\nlet x: crate::error::Error = crate::x_1;";
    assert_eq!(named_modules(code).collect::<Vec<_>>(), ["base", "error", "x_1"]);
}
