//! What a user may set ([`EngineOptions`]) and what the engine runs on ([`EngineConfig`]): checked once, then complete.
//!
//! Also the two small reports that loading gives to the outside: [`LoadProgress`] and [`RunnerInfo`].

mod activations;
mod complete;
mod kv;
mod options;
mod report;
mod warm_up;

pub use activations::Activations;
pub use complete::{ContextChoice, EngineConfig, MAX_STEPS_PER_SUBMIT, MAX_SUBMIT_BUDGET};
pub use kv::{KvDtype, kv_bytes_per_token};
pub use options::{DEFAULT_SUBMIT_BUDGET, EngineOptions, default_cache_dir};
pub use report::{LoadProgress, LoadStage, RunnerInfo};
pub use warm_up::WarmUp;
