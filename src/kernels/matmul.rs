//! Rows of activations times packed weights, for any number of rows with the same bits. Twin: `reference/matmul.rs`.
//!
//! MEASURED on lavapipe: 32 interleaved rows, four a lane, workgroups of one subgroup and a register tile of tokens are the
//! fastest shape for every format, and coalesced on GPUs. There several groups share a workgroup, and with few tokens the
//! segments of a sum are spread over its lanes.

use super::choice::product_shape;
use super::heads::Heads;
use super::{Form, KvDtype, activation_slot, weights};
use crate::base::DType;
use crate::gpu::{Const, DeviceKind, Profile, Variant};
use crate::model::spec::Activation;
use bytemuck::{Pod, Zeroable};

/// Fixed when the matrix is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Format of the weights.
    pub dtype: DType,
    /// How its activations stand; [`Form::Int12`] only for formats with whole codes.
    pub form: Form,
    /// Whether its rows are those that [`Epilogue::AddLeft`] left, and lack the factor of their norm.
    pub normed: bool,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// Which rows are multiplied.
    pub batch: Batch,
}

/// Which rows are multiplied with which matrix: also the name of the slot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// All rows of the step.
    Rows,
    /// Those whose logits are wanted, already gathered.
    Samples,
    /// Pairs of a row and an expert, each with the expert's matrix: see [`experts`](super::experts).
    Experts,
}

impl Batch {
    const fn slot(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Samples => "samples",
            Self::Experts => "experts",
        }
    }
}

/// What becomes of the sums: also the name of the slot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Stored.
    Store,
    /// Stored with a bias added.
    Bias,
    /// The activation of the sums with a bias added.
    BiasAct(Activation),
    /// Added to the output: the residual stream.
    Add,
    /// Added to the output with a bias.
    AddBias,
    /// `activation(gate) * up` of a matrix that holds both.
    ActMul(Activation),
    /// The same, left as [`Form::Int12`] for the next product; every shard must begin and end with a whole block of 32 outputs.
    ActMulInt12(Activation),
    /// Added to the output, whose new rows are left as [`Form::Int12`] for a [normed](Spec::normed) product.
    AddLeft,
    /// Rotated and written to the cache: a matrix of query, key and value heads.
    Heads(Heads),
    /// Softly limited to [`MatmulParams::cap`]: the logits of models that cap them.
    SoftCap,
}

impl Epilogue {
    /// Every epilogue but [`Heads`](Self::Heads), which has specs of its own.
    pub const ALL: [Self; 12] = [
        Self::Store,
        Self::Bias,
        Self::BiasAct(Activation::Silu),
        Self::BiasAct(Activation::GeluTanh),
        Self::Add,
        Self::AddBias,
        Self::ActMul(Activation::Silu),
        Self::ActMul(Activation::GeluTanh),
        Self::ActMulInt12(Activation::Silu),
        Self::ActMulInt12(Activation::GeluTanh),
        Self::AddLeft,
        Self::SoftCap,
    ];

    const fn slot(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Bias => "bias",
            Self::BiasAct(_) => "bias_act",
            Self::Add => "add",
            Self::AddBias => "add_bias",
            Self::ActMul(_) => "act_mul",
            Self::ActMulInt12(_) => "act_mul_int12",
            Self::AddLeft => "add_left",
            Self::Heads(_) => "heads",
            Self::SoftCap => "soft_cap",
        }
    }

    /// The activation, if there is one.
    pub const fn activation(self) -> Option<Activation> {
        match self {
            Self::BiasAct(activation) | Self::ActMul(activation) | Self::ActMulInt12(activation) => Some(activation),
            _ => None,
        }
    }

    /// Whether rows are left for the next product, in whole blocks of 32 columns.
    pub const fn leaves(self) -> bool {
        matches!(self, Self::ActMulInt12(_) | Self::AddLeft)
    }

    /// Whether the matrix holds gate and up.
    pub const fn is_gated(self) -> bool {
        matches!(self, Self::ActMul(_) | Self::ActMulInt12(_))
    }

    /// Whether a bias is bound.
    pub const fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::BiasAct(_) | Self::AddBias)
    }
}

/// Tokens in a register tile.
pub const TILES: [u32; 4] = [1, 2, 4, 8];

/// Uniform parameters of one shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct MatmulParams {
    /// Blocks of 32 columns.
    pub blocks: u32,
    /// Pieces of the sum; a property of the matrix, never of the batch.
    pub segments: u32,
    /// Groups of 32 rows in this shard.
    pub group_count: u32,
    /// Output columns that exist in this shard.
    pub row_count: u32,
    /// Where the shard's output begins in a row.
    pub out_offset: u32,
    /// Elements from one output row to the next.
    pub out_stride: u32,
    /// Vectors of four from one input row to the next.
    pub x_stride: u32,
    /// First sample that this dispatch covers.
    pub first_sample: u32,
    /// Most samples that this dispatch covers.
    pub sample_limit: u32,
    /// First expert of this shard; `group_count` and `row_count` are those of one expert.
    pub first_expert: u32,
    /// Experts of this shard.
    pub expert_count: u32,
    /// Pairs of a row and an expert that read the same input row; the others read a row each.
    pub pairs_per_input: u32,
    /// What sums are softly limited to.
    pub cap: f32,
    /// Added to the mean square of rows that lack the factor of their norm.
    pub norm_eps: f32,
    /// Where the table of rotations begins behind the list of rows, in vectors of four.
    pub turns_at: u32,
}

/// Segments into which a sum over `blocks` blocks is cut: enough that a single token fills a GPU, one on software adapters,
/// which have few lanes to fill. Depends on matrix and adapter only.
pub fn segments(blocks: usize, profile: &Profile) -> u32 {
    match profile.kind {
        DeviceKind::Cpu => 1,
        _ => (blocks / 2).clamp(1, 8) as u32,
    }
}

/// The tile for a bucket of `rows` tokens. Every tile gives the same bits.
pub fn tile(rows: usize) -> u32 {
    TILES.into_iter().find(|&tile| tile as usize >= rows).unwrap_or(TILES[TILES.len() - 1])
}

/// Lanes along segments: all segments at once while the tile is small enough for workgroup memory to hold their sums.
fn segment_lanes(tile: u32, profile: &Profile) -> u32 {
    if tile < 4 { product_shape(profile).segment_lanes } else { 1 }
}

/// Lanes along rows: at least those of a block that is left.
fn row_lanes(epilogue: Epilogue, profile: &Profile) -> u32 {
    let lanes = 8 * product_shape(profile).groups;
    match epilogue {
        Epilogue::ActMulInt12(_) => lanes.max(16),
        _ => lanes,
    }
}

/// The slot file for activations of a form. MEASURED on lavapipe, where a load in a loop costs as much as forty products, and there
/// is no instruction for four of them: loads shared by a subgroup and products in f32 are two to three times as fast as packed
/// products with many tokens, and as fast with one.
fn arithmetic(form: Form, profile: &Profile) -> &'static str {
    match form {
        Form::F32 => "f32",
        Form::Int12 if weights::reads_wide(profile) && profile.subgroups == Some(8..=8) => "int12_spread",
        Form::Int12 => "int12",
    }
}

/// The variant with a register tile of `tile` tokens.
pub fn variant(spec: &Spec, tile: u32, profile: &Profile) -> Variant {
    let segment_lanes = segment_lanes(tile, profile);
    let mut slots = weights::slots(spec.dtype, profile);
    slots.extend([
        ("arithmetic", arithmetic(spec.form, profile)),
        ("epilogue", spec.epilogue.slot()),
        ("batch", if matches!(spec.epilogue, Epilogue::Heads(_)) { "listed" } else { spec.batch.slot() }),
    ]);
    let mut consts = vec![
        ("TILE", Const::U32(tile)),
        ("SEGMENT_LANES", Const::U32(segment_lanes)),
        ("NORMED", Const::Bool(spec.normed)),
    ];
    if let Epilogue::Heads(heads) = &spec.epilogue {
        slots.push(("kv_pair", heads.kv.name()));
        consts.extend(heads.consts());
    }
    if spec.form == Form::Int12 {
        slots.push(("codes", spec.dtype.name()));
    }
    slots.extend(spec.epilogue.activation().map(|activation| ("activation", activation_slot(activation))));
    Variant { kernel: "matmul", slots, consts, workgroup: [row_lanes(spec.epilogue, profile), segment_lanes, 1] }
}

/// Workgroups for `groups` groups of rows and `tokens` tokens.
pub fn grid(epilogue: Epilogue, groups: usize, tokens: usize, tile: u32, profile: &Profile) -> [u32; 3] {
    tile_grid(epilogue, groups, tokens.div_ceil(tile as usize), profile)
}

/// Workgroups for `groups` groups of rows and `tiles` tiles of tokens.
pub fn tile_grid(epilogue: Epilogue, groups: usize, tiles: usize, profile: &Profile) -> [u32; 3] {
    let groups_per_workgroup = row_lanes(epilogue, profile) as usize / 8;
    [groups.div_ceil(groups_per_workgroup) as u32, tiles as u32, 1]
}

/// Every format in every tile, and every epilogue and batch in some formats.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let mut variants = Vec::new();
    let gated = Epilogue::ActMul(Activation::Silu);
    let mut add = |dtype: DType, epilogue, batch, tiles: &[u32]| {
        for form in [Form::F32, Form::Int12] {
            let normed = form == Form::Int12 && (epilogue == gated || matches!(epilogue, Epilogue::Heads(_)));
            let spec = Spec { dtype, form, normed, epilogue, batch };
            if form == Form::F32 || dtype.has_whole_codes() {
                variants.extend(tiles.iter().map(|&tile| variant(&spec, tile, profile)));
            }
        }
    };
    for dtype in DType::ALL {
        add(dtype, Epilogue::Store, Batch::Rows, &TILES);
        add(dtype, gated, Batch::Rows, &[8]);
    }
    for dtype in [DType::F16, DType::Q4_1] {
        for epilogue in Epilogue::ALL {
            add(dtype, epilogue, Batch::Rows, &TILES);
        }
        add(dtype, Epilogue::SoftCap, Batch::Samples, &TILES);
        add(dtype, gated, Batch::Experts, &TILES);
        add(dtype, Epilogue::ActMulInt12(Activation::Silu), Batch::Experts, &[1, 4]);
        add(dtype, Epilogue::Store, Batch::Experts, &TILES);
        for kv in [KvDtype::F16, KvDtype::F32] {
            let heads = Heads { heads: 9, kv_heads: 3, head_dim: 64, rotary_dim: 64, kv };
            add(dtype, Epilogue::Heads(heads), Batch::Rows, &TILES);
            add(dtype, Epilogue::Heads(Heads { head_dim: 96, rotary_dim: 32, ..heads }), Batch::Rows, &[4]);
            add(dtype, Epilogue::Heads(Heads { rotary_dim: 0, ..heads }), Batch::Rows, &[1]);
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_rows() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 512].map(tile), [1, 2, 4, 4, 8, 8, 8, 8]);
    }

    #[test]
    fn grids_at_the_edges() {
        let cpu = Profile::baseline(DeviceKind::Cpu);
        assert_eq!(grid(Epilogue::Store, 0, 1, 1, &cpu), [0, 1, 1]);
        assert_eq!(grid(Epilogue::Store, 49, 9, 8, &cpu), [49, 2, 1]);
        assert_eq!(grid(Epilogue::ActMulInt12(Activation::Silu), 49, 9, 8, &cpu), [25, 2, 1]);
        assert_eq!(grid(Epilogue::Store, 49, 9, 8, &Profile::cuda_class()), [13, 2, 1]);
    }
}
