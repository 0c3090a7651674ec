//! From a step plan to the bytes that the device reads. Pure: no GPU type.

mod bucket;
pub mod inputs;
mod side;

pub use bucket::{Bucket, Geometry};
pub use inputs::{InputShape, SeqState, StepHeader, StepInputs};
pub use side::SideLayout;
