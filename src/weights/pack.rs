//! Repacks matrices for the device: file rows in, planes out (layout: [`crate::quant`]).
//!
//! Several projections that read the same input become one matrix, so that one dispatch does the work of two or three.

use super::tensors::MatrixRef;
use crate::base::{DType, ceil_div};
use crate::error::{Error, Result};
use crate::quant::{BLOCK_COLUMNS, GROUP_ROWS, PackedBlock, PlaneShape, ScaleKind, format};
use rayon::prelude::*;
use std::ops::Range;

/// How the rows of several matrices share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// The rows of the parts one after another.
    Stacked,
    /// Two parts of equal rows; each group of 32 holds 16 rows of the first, then the same 16 rows of the second, so
    /// that one workgroup owns both factors of a gated product.
    GateUp,
}

/// Rows of each part in one group of [`Arrangement::GateUp`].
const HALF_GROUP: usize = GROUP_ROWS / 2;

/// u32 counts of one group of 32 rows in each plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneWords {
    /// In `codes`.
    pub codes: usize,
    /// In `scales`; 0 for plain formats.
    pub scales: usize,
    /// In `bits`; 0 unless the format has a fifth bit.
    pub bits: usize,
}

/// One device matrix made of one or more file matrices.
pub struct FusedMatrix<'a> {
    parts: Vec<MatrixRef<'a>>,
    arrangement: Arrangement,
}

impl<'a> FusedMatrix<'a> {
    /// Joins `parts`.
    ///
    /// # Errors
    /// Formats or widths differ, the width is not a multiple of 32, or `GateUp` is not given two parts of equal rows.
    pub fn new(parts: Vec<MatrixRef<'a>>, arrangement: Arrangement) -> Result<Self> {
        let Some(first) = parts.first() else {
            return Err(Error::bug("a fused matrix needs at least one part"));
        };
        let (dtype, columns) = (first.dtype, first.columns);
        if let Some(other) = parts.iter().find(|part| part.dtype != dtype || part.columns != columns) {
            return Err(Error::load(format!(
                "matrices of one layer that are read together must agree, but one is {dtype} with {columns} columns \
                 and another {} with {}",
                other.dtype, other.columns
            )));
        }
        if columns % BLOCK_COLUMNS != 0 {
            return Err(Error::load(format!(
                "a matrix has {columns} columns, but octavo needs a multiple of {BLOCK_COLUMNS}"
            )));
        }
        if arrangement == Arrangement::GateUp && !matches!(&parts[..], [gate, up] if gate.rows == up.rows) {
            return Err(Error::bug("gate and up must be two matrices of equal rows"));
        }
        Ok(Self { parts, arrangement })
    }

    /// The common format.
    pub fn dtype(&self) -> DType {
        self.parts[0].dtype
    }

    /// Rows of all parts together, without padding.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Width of every row.
    pub fn columns(&self) -> usize {
        self.parts[0].columns
    }

    /// Groups of 32 rows, the last one padded.
    pub fn groups(&self) -> usize {
        match self.arrangement {
            Arrangement::Stacked => ceil_div(self.rows(), GROUP_ROWS),
            Arrangement::GateUp => ceil_div(self.parts[0].rows, HALF_GROUP),
        }
    }

    /// Blocks of 32 columns.
    pub fn blocks(&self) -> usize {
        self.columns() / BLOCK_COLUMNS
    }

    /// Size of one group in each plane.
    pub fn plane_words_per_group(&self) -> PlaneWords {
        let PlaneShape { code_vectors, bits, .. } = format(self.dtype()).planes();
        let blocks = self.blocks();
        PlaneWords {
            codes: blocks * code_vectors * 4 * GROUP_ROWS,
            scales: self.scale_words_per_row() * GROUP_ROWS,
            bits: if bits { blocks * GROUP_ROWS } else { 0 },
        }
    }

    /// Writes the planes of `groups`, in parallel. Rows beyond the matrix become zeros.
    ///
    /// # Panics
    /// If a slice is not exactly `groups.len()` times [`plane_words_per_group`](Self::plane_words_per_group), or
    /// `groups` exceeds [`groups`](Self::groups): both are bugs of the caller.
    pub fn pack(&self, groups: Range<usize>, codes: &mut [u32], scales: &mut [u32], bits: &mut [u32]) {
        assert!(groups.end <= self.groups(), "groups {groups:?} of a matrix with {}", self.groups());
        let words = self.plane_words_per_group();
        let mut work = Vec::with_capacity(groups.len());
        let codes = split(codes, words.codes, groups.len());
        let scales = split(scales, words.scales, groups.len());
        let bits = split(bits, words.bits, groups.len());
        for (((group, codes), scales), bits) in groups.zip(codes).zip(scales).zip(bits) {
            work.push((group, Planes { codes, scales, bits }));
        }
        work.into_par_iter().for_each(|(group, planes)| self.pack_group(group, planes));
    }

    fn pack_group(&self, group: usize, planes: Planes<'_>) {
        planes.codes.fill(0);
        planes.scales.fill(0);
        planes.bits.fill(0);
        let format = format(self.dtype());
        let PlaneShape { code_vectors, scale, bits } = format.planes();
        let block_bytes = BLOCK_COLUMNS / self.dtype().block_elements() * self.dtype().block_bytes();
        let mut packed = PackedBlock::default();
        for lane in 0..GROUP_ROWS {
            let Some(row) = self.file_row(group, lane) else { continue };
            for (block, bytes) in row.chunks_exact(block_bytes).enumerate() {
                format.repack(bytes, &mut packed);
                for vector in 0..code_vectors {
                    let start = ((block * code_vectors + vector) * GROUP_ROWS + lane) * 4;
                    planes.codes[start..start + 4].copy_from_slice(&packed.codes[vector * 4..vector * 4 + 4]);
                }
                match scale {
                    ScaleKind::None => {}
                    ScaleKind::Scale => {
                        let half = u32::from(packed.scale) << (16 * (block % 2));
                        planes.scales[block / 2 * GROUP_ROWS + lane] |= half;
                    }
                    ScaleKind::ScaleMin => {
                        let word = u32::from(packed.scale) | u32::from(packed.min) << 16;
                        planes.scales[block * GROUP_ROWS + lane] = word;
                    }
                }
                if bits {
                    planes.bits[block * GROUP_ROWS + lane] = packed.bits;
                }
            }
        }
    }

    fn scale_words_per_row(&self) -> usize {
        match format(self.dtype()).planes().scale {
            ScaleKind::None => 0,
            ScaleKind::Scale => ceil_div(self.blocks(), 2),
            ScaleKind::ScaleMin => self.blocks(),
        }
    }

    /// The file bytes of the row at `lane` of `group`; `None` where there is only padding.
    fn file_row(&self, group: usize, lane: usize) -> Option<&[u8]> {
        let (part, row) = match self.arrangement {
            Arrangement::GateUp => (&self.parts[lane / HALF_GROUP], group * HALF_GROUP + lane % HALF_GROUP),
            Arrangement::Stacked => {
                let mut row = group * GROUP_ROWS + lane;
                let part = self.parts.iter().find(|part| {
                    let inside = row < part.rows;
                    row -= if inside { 0 } else { part.rows };
                    inside
                })?;
                (part, row)
            }
        };
        (row < part.rows).then(|| part.row(row))
    }
}

/// The planes of one group.
struct Planes<'a> {
    codes: &'a mut [u32],
    scales: &'a mut [u32],
    bits: &'a mut [u32],
}

/// `count` consecutive pieces of `words` each, which may be 0 (where `chunks_exact_mut` would panic).
fn split(mut plane: &mut [u32], words: usize, count: usize) -> Vec<&mut [u32]> {
    assert_eq!(plane.len(), words * count, "a plane has the wrong size");
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        let (piece, rest) = plane.split_at_mut(words);
        pieces.push(piece);
        plane = rest;
    }
    pieces
}
