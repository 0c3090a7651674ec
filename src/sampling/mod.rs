//! What a request asks of the sampler, and when its text ends. Pure data; the kernels are in `kernels::sample`.

mod builder;
mod constraint;
pub mod guide;
pub mod lists;
mod params;
pub mod repetition;
pub mod row;
pub mod stop;
mod validate;

pub use constraint::{Constraint, Grammar, Whitespace};
pub use lists::SamplingLists;
pub use params::{MAX_BAD_WORDS, RepetitionDetection, SamplingParams, TopLogprobs};
pub use row::{MAX_DEVICE_STOPS, SamplingRow};
