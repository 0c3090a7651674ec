//! Causal attention over paged KV: one kernel for prompt tiles and decode rows. Twin: `reference/attention.rs`.

use super::{Form, KvDtype, weights};
use crate::base::KV_CHUNK;
use crate::gpu::profile::BASELINE_SHARED_BYTES;
use crate::gpu::{Const, DeviceKind, Profile, Variant};
use crate::model::spec::AttnSpec;

/// Fixed when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; a multiple of eight, and of 32 in q8_0.
    pub head_dim: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Position i sees the keys of positions j with `i - j < window` only.
    pub window: Option<usize>,
    /// Soft limit of scaled products.
    pub softcap: Option<f32>,
    /// Storage of keys and values.
    pub kv: KvDtype,
}

/// Where tiles come from and what a workgroup covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Tiles of prompt rows; a workgroup walks all chunks.
    Prefill,
    /// Decode rows; a workgroup walks all chunks.
    Decode,
    /// Decode rows; a workgroup takes one chunk, and `attn_combine` merges.
    Split,
}

impl Spec {
    /// The spec of a layer.
    pub fn new(attn: &AttnSpec, kv: KvDtype) -> Self {
        let AttnSpec { heads, kv_heads, head_dim, scale, window, softcap, .. } = *attn;
        Self { heads, kv_heads, head_dim, scale, window, softcap, kv }
    }

    /// Most KV chunks that a query sees of `chunks`: a window covers part of a chunk at each of its ends.
    pub fn chunks(&self, chunks: usize) -> usize {
        self.window.map_or(chunks, |window| chunks.min((window - 1).div_ceil(KV_CHUNK) + 1))
    }

    /// The form that the kernels can leave rows in where `wanted` is wanted: blocks must not cross heads.
    pub fn form(&self, wanted: Form) -> Form {
        if self.head_dim.is_multiple_of(32) { wanted } else { Form::F32 }
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Query rows (heads times queries) that fit in the baseline's workgroup memory: scores of a chunk, sums, statistics;
    /// a little is left for reductions.
    fn most_members(&self) -> usize {
        let bytes = (KV_CHUNK + self.head_dim) * 4 + 16;
        ((BASELINE_SHARED_BYTES as usize - 1024) / bytes).clamp(1, 8)
    }

    /// Heads of one group that a workgroup takes.
    pub fn heads_per_tile(&self) -> usize {
        let group = self.group();
        (1..=self.most_members().min(group)).rev().find(|count| group.is_multiple_of(*count)).unwrap_or(1)
    }

    /// Queries in one tile of a prompt.
    pub fn tile_queries(&self) -> usize {
        (self.most_members() / self.heads_per_tile()).max(1)
    }

    /// Longest context that a workgroup may walk on this adapter. lavapipe ends the loops of an invocation after 65,535
    /// rounds in all, without a word, so the rounds of a chunk are counted here; loops over register arrays are unrolled.
    pub fn longest_context(&self, profile: &Profile) -> usize {
        if profile.kind != DeviceKind::Cpu {
            return usize::MAX;
        }
        let lanes = profile.row_lanes(64) as usize;
        let members = self.heads_per_tile() * self.tile_queries();
        let octets = self.head_dim / 8;
        let positions = KV_CHUNK.div_ceil(lanes);
        let score = positions.div_ceil(positions_together(members)) * (1 + octets);
        let softmax = members * (1 + 2 * positions + 2 * lanes.ilog2() as usize);
        let weigh = (members / row_batch(members) * octets).div_ceil(lanes) * (1 + KV_CHUNK / 16 + KV_CHUNK / 4);
        let chunks = LOOP_ROUNDS / (score + softmax + weigh);
        // A tile reaches as far past its first query's window as it has queries, which is less than a chunk.
        match self.chunks(usize::MAX) < chunks {
            true => usize::MAX,
            false => chunks * KV_CHUNK,
        }
    }
}

/// Rounds that may be counted on, below lavapipe's end of 65,535.
const LOOP_ROUNDS: usize = 60_000;

/// Query rows that a lane of a software adapter weighs together, so that it reads each value once.
fn row_batch(members: usize) -> usize {
    (1..=4).rev().find(|batch| members.is_multiple_of(*batch)).unwrap_or(1)
}

/// Positions that a lane of a software adapter scores together, so that it reads each query once for all of them.
fn positions_together(members: usize) -> usize {
    (12 / members).clamp(1, 4)
}

/// The variant for a layer, which leaves its rows in `form`; partial results are always [`Form::F32`].
pub fn variant(spec: &Spec, mode: Mode, form: Form, profile: &Profile) -> Variant {
    let lanes = profile.row_lanes(64);
    let heads_per_tile = spec.heads_per_tile();
    let queries = if mode == Mode::Prefill { spec.tile_queries() } else { 1 };
    let members = heads_per_tile * queries;
    // GPUs have lanes to spare.
    let software = profile.kind == DeviceKind::Cpu;
    let row_batch = if software { row_batch(members) } else { 1 };
    let reduce = profile.reduce_slot(lanes);
    let spread = software && reduce == "subgroup" && lanes == 8 && spec.head_dim.is_multiple_of(64);
    let wide = weights::reads_wide(profile);
    let kv = match spec.kv {
        KvDtype::F16 if wide && spec.head_dim.is_multiple_of(16) => "f16_wide",
        kv => kv.name(),
    };
    Variant {
        kernel: "attention",
        slots: vec![
            ("kv", kv),
            ("queries", if wide { "wide" } else { "narrow" }),
            ("reduce", reduce),
            ("rows_out", form.slot()),
            ("of_lane", if spread { "subgroup" } else { "none" }),
        ],
        consts: vec![
            ("HEADS", Const::U32(spec.heads as u32)),
            ("KV_HEADS", Const::U32(spec.kv_heads as u32)),
            ("HEAD_DIM", Const::U32(spec.head_dim as u32)),
            ("HEADS_PER_TILE", Const::U32(heads_per_tile as u32)),
            ("QUERIES", Const::U32(queries as u32)),
            ("ROW_BATCH", Const::U32(row_batch as u32)),
            ("POSITIONS", Const::U32(if software { positions_together(members) as u32 } else { 1 })),
            ("SPREAD", Const::Bool(spread)),
            ("SCALE", Const::f32(spec.scale)),
            window(spec),
            ("CAP", Const::f32(spec.softcap.unwrap_or(0.0))),
            ("DECODE", Const::Bool(mode != Mode::Prefill)),
            ("SPLIT", Const::Bool(mode == Mode::Split)),
        ],
        workgroup: [lanes, 1, 1],
    }
}

/// The window as the shaders of attention see it.
pub(super) fn window(spec: &Spec) -> (&'static str, Const) {
    ("WINDOW", Const::U32(spec.window.map_or(u32::MAX, |window| window as u32)))
}

/// One workgroup a tile, head tile and (with [`Mode::Split`]) chunk.
pub fn grid(spec: &Spec, tiles: usize, chunks: usize) -> [u32; 3] {
    [tiles as u32, (spec.heads / spec.heads_per_tile()) as u32, chunks as u32]
}

/// Grouped, single and many heads; every mode; every storage; windows and caps.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    let mut variants = Vec::new();
    for kv in KvDtype::ALL {
        for (heads, kv_heads, head_dim, window, softcap) in [
            (9, 3, 64, None, None),
            (4, 4, 16, Some(24), Some(5.0)),
            (16, 1, 128, None, Some(50.0)),
            (4, 2, 256, Some(512), None),
        ] {
            if !kv.holds(head_dim) {
                continue;
            }
            let spec = Spec { heads, kv_heads, head_dim, scale: 0.125, window, softcap, kv };
            variants.extend(
                [Mode::Prefill, Mode::Decode, Mode::Split].map(|mode| variant(&spec, mode, Form::F32, profile)),
            );
            if spec.form(Form::Int12) == Form::Int12 {
                variants.extend([Mode::Prefill, Mode::Decode].map(|mode| variant(&spec, mode, Form::Int12, profile)));
            }
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(heads: usize, kv_heads: usize, head_dim: usize) -> Spec {
        Spec::new(&AttnSpec::plain(heads, kv_heads, head_dim), KvDtype::F16)
    }

    #[test]
    fn software_adapters_walk_usual_contexts() {
        let cpu = Profile::baseline(DeviceKind::Cpu);
        assert!(spec(9, 3, 64).longest_context(&cpu) >= 8192);
        assert!(spec(16, 8, 128).longest_context(&cpu) >= 8192);
        assert_eq!(spec(16, 8, 128).longest_context(&Profile::cuda_class()), usize::MAX);
        // A window is walked however long the context is, unless it is too long itself.
        assert_eq!(Spec { window: Some(4096), ..spec(16, 8, 128) }.longest_context(&cpu), usize::MAX);
        assert!(Spec { window: Some(1 << 20), ..spec(16, 8, 128) }.longest_context(&cpu) < 1 << 20);
    }

    #[test]
    fn windows_reach_into_one_chunk_more_than_they_fill() {
        let chunks = |window, chunks| Spec { window, ..spec(4, 4, 16) }.chunks(chunks);
        assert_eq!(chunks(None, 7), 7);
        assert_eq!([1, 2, 256, 257, 258].map(|window| chunks(Some(window), 7)), [1, 2, 2, 2, 3]);
        assert_eq!(chunks(Some(4096), 3), 3);
    }

    #[test]
    fn tiles_divide_the_group() {
        assert_eq!((spec(9, 3, 64).heads_per_tile(), spec(9, 3, 64).tile_queries()), (3, 2));
        assert_eq!((spec(28, 4, 128).heads_per_tile(), spec(28, 4, 128).tile_queries()), (7, 1));
        assert_eq!((spec(16, 1, 256).heads_per_tile(), spec(16, 1, 256).tile_queries()), (4, 1));
        assert_eq!((spec(4, 4, 16).heads_per_tile(), spec(4, 4, 16).tile_queries()), (1, 8));
    }
}
