//! What a request asks of the sampler, and when its text ends. Pure data; the kernels are in `kernels::sample`.

mod params;
pub mod stop;

pub use params::{MAX_DEVICE_STOPS, SamplingParams, SamplingRow};
