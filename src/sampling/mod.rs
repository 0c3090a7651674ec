//! What a request asks of the sampler, and when its text ends. Pure data; the kernels are in `kernels::sample`.

mod constraint;
pub mod guide;
pub mod lists;
mod params;
pub mod row;
pub mod stop;

pub use constraint::{Constraint, Grammar, Whitespace};
pub use lists::SamplingLists;
pub use params::{RepetitionDetection, SamplingParams, TopLogprobs};
pub use row::{MAX_DEVICE_STOPS, SamplingRow};
