//! From a step plan to the bytes that the device reads. Pure: no GPU type.

mod bucket;
pub mod inputs;

pub use bucket::{Bucket, Geometry};
pub use inputs::{SeqState, StepHeader, StepInputs};
