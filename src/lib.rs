//! octavo runs language models on any GPU that wgpu reaches: Vulkan, Metal, Direct3D 12, and software drivers.
//!
//! Many requests share one device: their keys and values live in pages of 16 tokens, every step mixes whatever prompts
//! and answers are under way, and prompts that begin alike are computed once. All of it is Rust and WGSL; there is no
//! Python, no CUDA and no C++ to build.
//!
//! ```no_run
//! use octavo::{EngineOptions, Llm, SamplingParams};
//!
//! fn main() -> octavo::Result<()> {
//!     let llm = Llm::open("SmolLM2-135M-Instruct.Q4_1.gguf", EngineOptions::default())?;
//!     let prompts = ["The capital of France is", "Water boils at"];
//!     for output in llm.generate(prompts, SamplingParams::greedy(24))? {
//!         println!("{}", output.text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A model is a Hugging Face folder (`config.json` and safetensors), a `.gguf` file or, with the feature `hub`, a hub id.
//! [`Llm`] blocks; [`Llm::engine`] gives streams instead, which any async runtime can poll and which cancel their
//! request when they are dropped:
//!
//! ```no_run
//! use futures::StreamExt;
//! use octavo::{ChatMessage, EngineOptions, Llm, SamplingParams, TokenEvent};
//!
//! async fn answer(llm: &Llm, question: &str) -> octavo::Result<()> {
//!     let messages = [ChatMessage::new("user", question)];
//!     let mut stream = llm.chat_stream(&messages, SamplingParams::greedy(200))?;
//!     while let Some(event) = stream.next().await {
//!         if let TokenEvent::Delta { text, .. } = event? {
//!             print!("{text}");
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What is named at this level, and [`engine`], [`config`], [`sampling`], [`text`], [`metrics`] and [`error`], is for
//! applications. The other modules are open so that tests, tools and curious readers reach them; they change freely.
//!
//! # Code map
//!
//! One step of the engine, from left to right: the scheduler decides in plain values what runs, the layout turns that
//! into bytes, the runner replays prepared dispatches on the device, and tokens come back one submission later.
//!
//! ```text
//! Request -> engine -> sched -> StepPlan -> layout -> StepInputs -> runner -> bundle -> kernels -> StepResult -> engine
//!                        |                                            |
//!                      cache (blocks, prefixes)              gpu (device, memory, pipelines)
//! ```
//!
//! | module | what it is | may use |
//! |---|---|---|
//! | [`base`] | ids, element types, integer helpers, the counter random numbers | nothing |
//! | [`error`] | the one public error | nothing |
//! | [`sampling`] | sampling parameters and what the sampler reads of them; stops, repetitions, the traits of grammar engines | `base` |
//! | [`cache`] | who holds which KV block; which blocks are found again by their tokens | `base` |
//! | [`sched`] | what each step computes: budget, admission, preemption, run-ahead; [`sched::plan::StepPlan`] | `base`, `cache`, `sampling`, the types of `runner` |
//! | [`layout`] | a step plan as the bytes that the device reads | `base`, `sampling`, `sched::plan` |
//! | [`gpu`] | everything that touches wgpu: adapter profile, WGSL linker, memory ledger, bundles, read-back | nothing but `error` |
//! | [`kernels`] | one file per kernel: its choice of a variant, parameters, grid; the WGSL is in `shaders/kernels/` | `base`, `gpu`, the specs of `model` |
//! | [`kernels::self_test`] | each kernel against its twin on the device at hand, for `octavo doctor` and for tests | `kernels`, `reference` and what they use |
//! | [`reference`](mod@reference) | an f64 twin for each kernel, and a whole runner made of them | the pure modules, `model`, `weights` |
//! | [`quant`] | one file per weight format: block layout, decoding, repacking | `base` |
//! | [`weights`] | safetensors and GGUF files; tensors to device matrices | `base`, `quant`, the specs of `model` |
//! | [`model`] | what a model is, as data; one file per architecture | `base`, `weights`, `text` |
//! | [`runner`] | [`runner::ModelRunner`] and what stands behind it: GPU and mock | everything below the engine |
//! | [`text`] | tokenizers, streaming detokenization, chat templates | `base` |
//! | [`engine`] | the thread that drives scheduler and runner; handles, streams, recovery | `sched`, `sampling`, `text`, `runner` (the trait) |
//! | `structured` | grammars: which tokens may come next when an output must fit one; feature `structured` | `base`, `error`, `sampling` (its traits and constraints), `text` |
//! | [`llm`] | the blocking front door | everything |
//! | [`config`], [`metrics`] | options, checked once; figures | types of their subjects |
//! | [`sim`] | workloads, a driver in virtual or real time, random lives of the scheduler in which every call is checked | `sched`, `runner` (trait and mock), `sampling`, `trace` |
//! | [`trace`] | the scheduler's calls and decisions as a file: written, read, replayed, drawn | `sched`, `runner` (its plain types), `plot` |
//! | `plot` | charts as SVG and PNG; feature `plot` | `error`, `metrics` |
//!
//! The table and the first two invariants below are checked by `tests/code_map.rs`.
//!
//! # Invariants
//!
//! - `sched`, `cache` and `layout` know no GPU, thread, clock or random source: the same calls give the same plans.
//! - Only `gpu` calls wgpu, and it knows no token, layer or sequence.
//! - `engine` sees `dyn ModelRunner`, never a particular one. Losing the device is an ordinary event: the host owns the
//!   token lists, so it rebuilds the runner and carries on.
//! - One order of summation for each output element, whatever else runs: a request's tokens never depend on its batch
//!   mates, on chunks, cache hits, preemption, bundles or run-ahead (`tests/metamorphic.rs`).
//! - A bundle holds no allocation, no upload and no value that depends on data; encoding it twice means two steps.
//! - A KV block is never written while two sequences hold it, and never reused before the last submission that could
//!   touch it has retired.
//! - Rust and WGSL structs are compared by reflection in tests; nothing is kept in step by hand.
//!
//! Deliberately absent: a tensor type with operators, autograd, a graph optimiser, global state, async code in the
//! scheduler. Dispatches on named buffers are the whole framework.
//!
//! # Features
//!
//! - `cli` (default): the program `octavo`. Turn it off to embed the library: `default-features = false`.
//! - `hub` (default): models by hub id, downloaded once into the usual cache.
//! - `plot` (default): pictures of traces and benchmarks.
//! - `structured` (default): output that fits a JSON Schema, a regular expression or a grammar.
//!
//! # Environment
//!
//! Two variables are read by the library itself; `octavo --help` lists those that only the program reads.
//! `OCTAVO_DISABLE` names device features to leave unused (`f16,int64,subgroups,timestamps,matrix`), to see a strong device do what a
//! weak one would. `OCTAVO_SHADER_DIR` reads the WGSL from a folder instead of the copy in the program.

#![warn(missing_docs)]

pub mod base;
pub mod cache;
pub mod config;
pub mod engine;
pub mod error;
pub mod gpu;
pub mod kernels;
pub mod layout;
pub mod llm;
pub mod metrics;
pub mod model;
#[cfg(feature = "plot")]
pub mod plot;
pub mod quant;
pub mod reference;
pub mod runner;
pub mod sampling;
pub mod sched;
pub mod sim;
#[cfg(feature = "structured")]
pub mod structured;
pub mod text;
pub mod trace;
pub mod weights;

pub use config::{EngineConfig, EngineOptions, KvDtype};
pub use engine::{Engine, EngineHandle, Logprob, Prompt, Request, RequestOutput, TokenEvent, TokenStream};
pub use error::{Error, ErrorKind, Result};
pub use llm::Llm;
pub use sampling::{Constraint, Grammar, SamplingParams, TopLogprobs};
pub use sched::FinishReason;
pub use text::ChatMessage;
