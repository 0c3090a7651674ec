//! Repacks matrices for the device: file rows in, planes out (layout: [`crate::quant`]).
//!
//! Several projections that read the same input become one matrix, so that one dispatch does the work of two or three. A
//! full-precision matrix may be quantised on the way, block by block, so that no second copy of it ever exists.

use super::source::TensorInfo;
use super::tensors::MatrixRef;
use crate::base::{DType, ceil_div};
use crate::error::{Error, Result};
use crate::quant::{BLOCK_COLUMNS, Encoder, GROUP_ROWS, PackedBlock, QuantFormat, format};
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
    /// Query, key and value heads one after another. Of each group of 32 rows that rotate, the first 16 are neighbours in the
    /// first half of a head's rotary part, and the others are the rows that those turn with, so that one lane owns both.
    Heads {
        /// Heads that rotate, queries and then keys.
        rotated: usize,
        /// Rows of a head; a multiple of 32.
        head_dim: usize,
        /// Rows of a head that rotate, at its beginning; a multiple of 32.
        rotary_dim: usize,
    },
}

impl Arrangement {
    /// The row of the stacked parts that stands at `place`.
    fn stacked_row(self, place: usize) -> usize {
        let Self::Heads { rotated, head_dim, rotary_dim } = self else { return place };
        let (head, within) = (place / head_dim, place % head_dim);
        if head >= rotated || within >= rotary_dim {
            return place;
        }
        let (group, lane) = (within / GROUP_ROWS, within % GROUP_ROWS);
        let half = if lane < HALF_GROUP { 0 } else { rotary_dim / 2 };
        head * head_dim + half + group * HALF_GROUP + lane % HALF_GROUP
    }
}

/// Rows of each part in one group of [`Arrangement::GateUp`], and neighbours in one of [`Arrangement::Heads`].
const HALF_GROUP: usize = GROUP_ROWS / 2;

/// u32 counts of one group of 32 rows in each plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneWords {
    /// In `codes`.
    pub codes: usize,
    /// In `scales`; 0 for plain formats.
    pub scales: usize,
    /// In `bits`; 0 unless the format keeps high bits apart.
    pub bits: usize,
}

/// One device matrix made of one or more file matrices.
pub struct FusedMatrix<'a> {
    parts: Vec<MatrixRef<'a>>,
    arrangement: Arrangement,
    dtype: DType,
    encoder: Option<Encoder>,
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
        Ok(Self { parts, arrangement, dtype, encoder: None })
    }

    /// The same matrix, to be rounded to the format `to` when it is packed if its files hold full precision. Quantised
    /// files stay as they are, and so does everything for `None`.
    ///
    /// # Errors
    /// Octavo cannot write `to`.
    pub fn quantized(self, to: Option<DType>) -> Result<Self> {
        let Some(to) = to.filter(|_| self.dtype.is_plain()) else { return Ok(self) };
        match format(to).encoder() {
            Some(encoder) => Ok(Self { dtype: to, encoder: Some(encoder), ..self }),
            None => Err(Error::config(format!("weights cannot be converted to {to} while they are loaded"))),
        }
    }

    /// The format on the device.
    pub fn dtype(&self) -> DType {
        self.dtype
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
            Arrangement::Stacked | Arrangement::Heads { .. } => ceil_div(self.rows(), GROUP_ROWS),
            Arrangement::GateUp => ceil_div(self.parts[0].rows, HALF_GROUP),
        }
    }

    /// Blocks of 32 columns.
    pub fn blocks(&self) -> usize {
        self.columns() / BLOCK_COLUMNS
    }

    /// Size of one group in each plane.
    pub fn plane_words_per_group(&self) -> PlaneWords {
        let [codes, scales, bits] = format(self.dtype).planes().row_words(self.blocks());
        PlaneWords { codes: codes * GROUP_ROWS, scales: scales * GROUP_ROWS, bits: bits * GROUP_ROWS }
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

    fn pack_group(&self, group: usize, mut planes: Planes<'_>) {
        planes.codes.fill(0);
        planes.scales.fill(0);
        planes.bits.fill(0);
        let format = format(self.dtype);
        let mut packed = PackedBlock::default();
        // One unit of any format that can be written.
        let mut unit = [0; BLOCK_COLUMNS * 2];
        let mut values = vec![0.0; if self.encoder.is_some() { self.columns() } else { 0 }];
        for lane in 0..GROUP_ROWS {
            let Some((part, row)) = self.file_row(group, lane) else { continue };
            if let Some(encode) = self.encoder {
                part.decode_row(row, &mut values);
                let unit = &mut unit[..format.unit_bytes()];
                for (block, values) in values.as_chunks::<BLOCK_COLUMNS>().0.iter().enumerate() {
                    encode(values, unit);
                    format.repack(unit, 0, &mut packed);
                    planes.put(format, block, lane, &packed);
                }
                continue;
            }
            let blocks_per_unit = format.unit_columns() / BLOCK_COLUMNS;
            for (index, unit) in part.row(row).chunks_exact(format.unit_bytes()).enumerate() {
                for block in 0..blocks_per_unit {
                    format.repack(unit, block, &mut packed);
                    planes.put(format, index * blocks_per_unit + block, lane, &packed);
                }
            }
        }
    }

    /// The part and its row at `lane` of `group`; `None` where there is only padding.
    fn file_row(&self, group: usize, lane: usize) -> Option<(&MatrixRef<'a>, usize)> {
        let (part, row) = match self.arrangement {
            Arrangement::GateUp => (&self.parts[lane / HALF_GROUP], group * HALF_GROUP + lane % HALF_GROUP),
            Arrangement::Stacked | Arrangement::Heads { .. } => {
                let mut row = self.arrangement.stacked_row(group * GROUP_ROWS + lane);
                let part = self.parts.iter().find(|part| {
                    let inside = row < part.rows;
                    row -= if inside { 0 } else { part.rows };
                    inside
                })?;
                (part, row)
            }
        };
        (row < part.rows).then_some((part, row))
    }
}

/// The planes of one group.
struct Planes<'a> {
    codes: &'a mut [u32],
    scales: &'a mut [u32],
    bits: &'a mut [u32],
}

impl Planes<'_> {
    /// Adds block `block` of the row at `lane`. The planes must be zero where it goes.
    fn put(&mut self, format: &dyn QuantFormat, block: usize, lane: usize, packed: &PackedBlock) {
        let shape = format.planes();
        let width = shape.vector_words();
        for (vector, words) in packed.codes[..shape.code_words].chunks_exact(width).enumerate() {
            let start = ((block * (shape.code_words / width) + vector) * GROUP_ROWS + lane) * width;
            self.codes[start..start + width].copy_from_slice(words);
        }
        for (word, bits) in shape.scale.place(packed, block).into_iter().flatten() {
            self.scales[word * GROUP_ROWS + place_of_scale(lane)] |= bits;
        }
        let start = (block * GROUP_ROWS + lane) * shape.bit_words;
        self.bits[start..start + shape.bit_words].copy_from_slice(&packed.bits[..shape.bit_words]);
    }
}

/// Where the word of a row lies among the 32 of its group: in the order of the lanes that own the rows in a product, four to a
/// lane. Lane `l` of eight owns rows `2 l`, `2 l + 1`, `2 l + 16` and `2 l + 17`: see shaders/lib/own_rows.wgsl.
fn place_of_scale(row: usize) -> usize {
    row % 16 / 2 * 4 + row / 16 * 2 + row % 2
}

/// Bytes that a tensor takes on the device, but for the padding of its last row group: the planes of a matrix, after
/// quantisation if that is asked for, or a vector of f32.
pub fn device_bytes(info: &TensorInfo, quantize: Option<DType>) -> u64 {
    let elements: usize = info.shape.iter().product();
    let significant = info.shape.iter().filter(|&&n| n > 1).count();
    let columns = info.shape.last().copied().unwrap_or(0);
    if significant < 2 || elements == 0 || columns % BLOCK_COLUMNS != 0 {
        return 4 * elements as u64;
    }
    let dtype = quantize.filter(|_| info.dtype.is_plain()).unwrap_or(info.dtype);
    let words: usize = format(dtype).planes().row_words(columns / BLOCK_COLUMNS).iter().sum();
    (elements / columns) as u64 * 4 * words as u64
}

/// Whether a format keeps high bits in a plane of their own on the device.
pub fn has_bits_plane(dtype: DType) -> bool {
    format(dtype).planes().bit_words > 0
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
