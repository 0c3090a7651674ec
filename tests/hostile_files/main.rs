//! Damaged and lying model files: always an error or a model that can be read, never a panic, never memory for what a file
//! only claims to hold.
//!
//! The cases of a run are those of consecutive seeds: `OCTAVO_TEST_CASES` sets how many of each kind (the usual few keep the
//! suite short), `OCTAVO_TEST_SEED` the first one. A failure names its seed.

mod dice;
mod folder;
mod gguf;
mod memory;
#[path = "../tiny_files/mod.rs"]
mod tiny_files;

use memory::peak_of;
use octavo::error::{ErrorKind, Result};
use octavo::model::files::ModelFiles;
use serde_json::{Value as Json, json};
use std::sync::Mutex;
use std::time::Instant;
use tiny_files::{
    Gguf, Meta, Tensor, open_gguf, open_safetensors, read_everything, safetensors, tiny_config, tiny_tensors,
};

/// Memory that opening may take for each byte of the files: the shortest entry of a header, a dozen bytes, becomes a place
/// in a table, which may be half empty and is copied when it grows.
const MEMORY_PER_BYTE: usize = 40;
/// What the smallest model takes, and the description of as many layers as a model may have at all: files are asked
/// whether they hold them right after.
const MEMORY_ANYWAY: usize = 2 << 20;

/// One case in this many is written to disk and opened from there.
const ON_DISK: u64 = 256;

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text}, not a number")))
}

/// Says which case was running when a test panics.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case has seed {}", self.0);
        }
    }
}

#[derive(Default)]
struct Tally {
    opened: u64,
    refused: u64,
    /// Most memory that a case took.
    peak: usize,
}

/// Runs all cases of one kind, on all processors. `open` gives the outcome, the size of the files and the memory it took.
fn run_cases(kind: &str, open: impl Fn(u64) -> (Result<ModelFiles>, usize, usize) + Sync) {
    let (first, count) = (setting("OCTAVO_TEST_SEED", 0), setting("OCTAVO_TEST_CASES", 3000));
    let (start, total) = (Instant::now(), Mutex::new(Tally::default()));
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (open, total) = (&open, &total);
            scope.spawn(move || {
                let mut tally = Tally::default();
                for seed in (first..first + count).filter(|seed| seed % threads == thread) {
                    let _running = Running(seed);
                    let (outcome, bytes, peak) = open(seed);
                    let error = outcome.as_ref().err();
                    assert!(peak <= MEMORY_ANYWAY + MEMORY_PER_BYTE * bytes, "{peak} bytes to open {bytes}: {error:?}");
                    tally.peak = tally.peak.max(peak);
                    match outcome {
                        Ok(files) => {
                            read_everything(&files);
                            tally.opened += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Load, "{error}");
                            tally.refused += 1;
                        }
                    }
                }
                let mut total = total.lock().unwrap();
                total.opened += tally.opened;
                total.refused += tally.refused;
                total.peak = total.peak.max(tally.peak);
            });
        }
    });
    let Tally { opened, refused, peak } = total.into_inner().unwrap();
    println!(
        "{kind}: {count} cases from seed {first} in {:.0} s: {opened} opened, {refused} refused, {peak} bytes of memory at most",
        start.elapsed().as_secs_f64()
    );
    // Cases that all end at the first check would say little.
    assert!(opened >= count / 50 && refused >= count / 5, "{opened} of {count} opened");
}

#[test]
fn lying_gguf_files() {
    let folder = tempfile::tempdir().unwrap();
    run_cases("GGUF", |seed| {
        let bytes = gguf::case(seed);
        let size = bytes.len();
        if seed % ON_DISK != 0 {
            let (outcome, peak) = peak_of(|| open_gguf(bytes));
            return (outcome, size, peak);
        }
        let path = folder.path().join(format!("{seed}.gguf"));
        std::fs::write(&path, bytes).unwrap();
        let (outcome, peak) = peak_of(|| ModelFiles::open(&path));
        std::fs::remove_file(&path).unwrap();
        (outcome, size, peak)
    });
}

#[test]
fn lying_folders() {
    run_cases("folders", |seed| {
        let files = folder::case(seed);
        let size = files.bytes();
        if seed % ON_DISK != 0 {
            let (outcome, peak) = peak_of(|| files.open());
            return (outcome, size, peak);
        }
        let folder = tempfile::tempdir().unwrap();
        files.write(folder.path()).unwrap();
        let (outcome, peak) = peak_of(|| ModelFiles::open(folder.path()));
        (outcome, size, peak)
    });
}

#[test]
fn the_undamaged_files_open() {
    read_everything(&Gguf::tiny_llama().open().unwrap());
    read_everything(&open_safetensors(&tiny_config(), safetensors(&tiny_tensors())).unwrap());
}

#[test]
fn every_truncation_is_an_error() {
    let gguf = Gguf::tiny_llama().write();
    let other = safetensors(&tiny_tensors());
    let header = 8 + u64::from_le_bytes(other[..8].try_into().unwrap()) as usize;
    // Every place in the headers; in the data, which is all alike, some.
    let places = |header: usize, length: usize| (0..header).chain((header..length).step_by(97)).chain([length - 1]);
    for length in places(gguf.data_start, gguf.bytes.len()) {
        let error = open_gguf(gguf.bytes[..length].to_vec()).err().unwrap_or_else(|| panic!("{length} bytes opened"));
        assert_eq!(error.kind(), ErrorKind::Load, "{error}");
    }
    for length in places(header, other.len()) {
        let error = open_safetensors(&tiny_config(), other[..length].to_vec()).err();
        assert_eq!(error.unwrap_or_else(|| panic!("{length} bytes opened")).kind(), ErrorKind::Load);
    }
}

#[test]
fn huge_claims_are_refused_before_memory_is_asked_for() {
    let written = Gguf::tiny_llama().write();
    // Tensor count, pair count and the length of the first key.
    for field in [1, 2, 3] {
        for claim in [1 << 33, 1 << 60, u64::MAX] {
            let mut bytes = written.bytes.clone();
            let (at, width) = written.fields[field];
            bytes[at..at + width].copy_from_slice(&u64::to_le_bytes(claim));
            let (outcome, peak) = peak_of(|| open_gguf(bytes));
            let message = outcome.err().expect("refused").to_string();
            assert!(message.contains(&claim.to_string()) && message.contains("room"), "{message}");
            assert!(peak < 64 << 10, "{peak}");
        }
    }
}

/// Headers of nothing but the shortest entries are what grows most in memory.
#[test]
fn dense_headers_stay_within_the_bound() {
    let pairs = |gguf: &mut Gguf| gguf.pairs.extend((0..20_000).map(|n| (format!("{n:x}"), Meta::Bool(true))));
    let texts = |gguf: &mut Gguf| {
        gguf.pairs.push(("tokenizer.ggml.merges".to_owned(), Meta::Texts(vec![String::new(); 40_000])));
    };
    let tensors = |gguf: &mut Gguf| {
        let tensor = |n| Tensor { name: format!("{n:x}"), dimensions: vec![1], kind: 0, bytes: vec![0; 4] };
        gguf.tensors.extend((0..20_000).map(tensor));
    };
    for (what, fill) in [("pairs", &pairs as &dyn Fn(&mut Gguf)), ("texts", &texts), ("tensors", &tensors)] {
        let mut gguf = Gguf::tiny_llama().without("tokenizer.ggml.merges");
        fill(&mut gguf);
        let bytes = gguf.write().bytes;
        let size = bytes.len();
        let (outcome, peak) = peak_of(|| open_gguf(bytes));
        println!("{size} bytes of {what}: {:.1} bytes of memory for each", peak as f64 / size as f64);
        assert!(outcome.is_ok(), "{:?}", outcome.err());
        assert!(peak <= MEMORY_ANYWAY + MEMORY_PER_BYTE * size, "{what}: {peak} bytes to open {size}");
    }
}

#[test]
fn any_value_of_any_type_in_a_configuration_is_handled() {
    let file = safetensors(&tiny_tensors());
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(1.5),
        json!(1e308),
        json!("text"),
        json!([]),
        json!(["LlamaForCausalLM", 3]),
        json!({"rope_type": "linear", "factor": 0}),
        json!({"rope_type": "llama3", "factor": 8}),
    ];
    let Json::Object(config) = tiny_config() else { unreachable!("it is an object") };
    let mut refused = 0;
    for key in config.keys() {
        for value in &values {
            let mut config = config.clone();
            config.insert(key.clone(), value.clone());
            match open_safetensors(&Json::Object(config), file.clone()) {
                Ok(files) => read_everything(&files),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Load, "{key} = {value}: {error}");
                    refused += 1;
                }
            }
        }
    }
    // Sizes, which are eight of the keys, allow one value at most.
    assert!(refused > 8 * (values.len() - 2), "{refused}");
}
