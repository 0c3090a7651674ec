//! CPU twins of the GPU kernels, in plain f64 loops, and a runner that joins them into a whole model.
//!
//! What a twin promises:
//! - it computes the same function of the same inputs as the kernel whose name it bears, and nothing else;
//! - all arithmetic is f64, in the order in which the formula is read: no blocking, no chunks, no fusing, no cleverness;
//! - inputs that the kernel reads in a narrower type (weights, cos and sin tables, logits) come in that type, so that a
//!   difference between twin and kernel is rounding of the kernel's own arithmetic, never of its inputs;
//! - it keeps no state.
//!
//! What is *not* here: anything fast. The twins exist to be right; [`ReferenceRunner`] is meant for models of a few
//! million weights.
//!
//! | twin | function |
//! | --- | --- |
//! | [`embed`] | a row of the embedding matrix, scaled, plus a learned position |
//! | [`norm`] | root-mean-square and layer norm |
//! | [`matmul`] | weights times activations, with the condition of each sum |
//! | [`quantize`] | whether a row was rounded to int12 rightly |
//! | [`rope_kv`] | query and key norms, rotation |
//! | [`attention`] | grouped-query attention of one token |
//! | [`act_mul`] | activations, `activation(gate) * up` |
//! | [`experts`] | choice of experts, and the sum of what they gave |
//! | [`process`] | the rules of a request on a row of logits |
//! | [`sample`] | filters, exact distribution, draw |
//! | [`peak`] | loops that measure a device |
//! | [`score`] | log-probability and rank of a known token, likeliest tokens |
//! | [`advance`] | what a slot does after a token was sampled |
//!
//! [`tolerance`] says how far a kernel may be from its twin. [`model`] walks a
//! [`ModelSpec`](crate::model::spec::ModelSpec) of [`layer`]s, [`kv`] is paged memory, and [`runner`] runs step plans.

pub mod act_mul;
pub mod advance;
pub mod attention;
pub mod embed;
pub mod experts;
pub mod kv;
mod kv_precision;
pub mod layer;
pub mod matmul;
pub mod model;
pub mod norm;
pub mod peak;
pub mod process;
pub mod quantize;
pub mod rope_kv;
pub mod runner;
pub mod sample;
pub mod score;
mod slot;
pub mod tolerance;

pub use kv_precision::KvPrecision;
pub use model::Trace;
pub use runner::{ReferenceOptions, ReferenceRunner};
