//! What a model is ([`spec`]), how its files say so ([`arch`], [`files`]), and its rotary tables ([`rope`]).

pub mod arch;
mod config;
pub mod files;
pub mod rope;
pub mod spec;
mod text_files;

pub use config::Config;
