//! One file per kernel: its spec (what is fixed when a model is loaded), its choice of a variant from the adapter's profile,
//! its parameters and its grid. Shaders stand in `shaders/kernels/` and f64 twins in `reference/` under the same names.
//!
//! [`choice`] says in words what all of them choose on an adapter, and why, and what may be measured instead.
//!
//! Nothing here knows a sequence or a request. A kernel is named by the closed list [`ALL`], from which tests translate and
//! run every variant.

pub mod act_mul;
pub mod attention;
pub mod attn_combine;
pub mod choice;
pub mod embed;
pub mod experts;
pub mod heads;
pub mod matmul;
pub mod matmul_units;
pub mod norm;
pub mod norm_add;
pub mod peak;
pub mod qk_norm;
pub mod quantize;
pub mod resolve;
pub mod rope_kv;
pub mod sample;
pub mod self_test;
pub mod update;
mod weights;

pub use crate::config::KvDtype;
use crate::gpu::{Profile, Variant};
use crate::model::spec::Activation;

/// A kernel, for those who want to visit all of them.
pub struct KernelInfo {
    /// `shaders/kernels/<name>.wgsl`.
    pub name: &'static str,
    /// Every variant that the profile allows, over a closed list of specs.
    pub variants: fn(&Profile) -> Vec<Variant>,
}

/// How rows of activations stand between the kernel that makes them and the product that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As computed.
    F32,
    /// Rounded to 4095 steps in each block of 32 columns, so that products with quantised weights are taken in whole numbers.
    Int12,
}

impl Form {
    /// The slot file of those who write.
    const fn slot(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int12 => "int12",
        }
    }
}

/// The slot file of an activation.
fn activation_slot(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
    }
}

/// All kernels.
pub static ALL: &[KernelInfo] = &[
    KernelInfo { name: "act_mul", variants: act_mul::variants_for_tests },
    KernelInfo { name: "attention", variants: attention::variants_for_tests },
    KernelInfo { name: "attn_combine", variants: attn_combine::variants_for_tests },
    KernelInfo { name: "combine_experts", variants: experts::combine_variants_for_tests },
    KernelInfo { name: "embed", variants: embed::variants_for_tests },
    KernelInfo { name: "group_experts", variants: experts::group_variants_for_tests },
    KernelInfo { name: "matmul", variants: matmul::variants_for_tests },
    KernelInfo { name: "matmul_units", variants: matmul_units::variants_for_tests },
    KernelInfo { name: "norm", variants: norm::variants_for_tests },
    KernelInfo { name: "norm_add", variants: norm_add::variants_for_tests },
    KernelInfo { name: "peak", variants: peak::variants_for_tests },
    KernelInfo { name: "qk_norm", variants: qk_norm::variants_for_tests },
    KernelInfo { name: "quantize", variants: quantize::variants_for_tests },
    KernelInfo { name: "resolve", variants: resolve::variants_for_tests },
    KernelInfo { name: "rope_kv", variants: rope_kv::variants_for_tests },
    KernelInfo { name: "route_experts", variants: experts::route_variants_for_tests },
    KernelInfo { name: "sample_logprobs", variants: sample::logprobs_variants_for_tests },
    KernelInfo { name: "sample_pick", variants: sample::pick_variants_for_tests },
    KernelInfo { name: "sample_scan", variants: sample::scan_variants_for_tests },
    KernelInfo { name: "update", variants: update::variants_for_tests },
];
