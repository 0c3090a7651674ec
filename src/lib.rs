//! octavo
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
pub mod quant;
pub mod reference;
pub mod runner;
pub mod sampling;
pub mod sched;
pub mod text;
pub mod weights;

pub use config::{EngineConfig, EngineOptions, KvDtype};
pub use engine::{Engine, EngineHandle, TokenStream};
pub use error::{Error, ErrorKind, Result};
pub use llm::Llm;
pub use sampling::SamplingParams;
