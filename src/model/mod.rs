//! What a model is ([`spec`]), how its files say so ([`arch`], [`files`], [`generation`]), and its rotary tables
//! ([`rope`]).

pub mod arch;
mod config;
pub mod files;
pub mod generation;
pub mod rope;
pub mod spec;
pub mod text_files;

pub use config::Config;
