//! The list of a step's rows and the tables of rotations, in one buffer: products that rotate heads have no binding to spare.

use super::load::Loader;
use crate::error::Result;
use crate::gpu::memory::{Slice, Use};
use crate::model::rope::cos_sin_table;
use crate::model::spec::RopeSpec;

/// Rows that a kernel may look at beyond those of the step: whole tiles of products on matrix units, whole workgroups of `resolve`.
const ROW_UNIT: usize = 64;
/// Bytes of a row: token, slot, position and KV index.
const ROW_BYTES: u64 = 16;

/// Slices of the buffer.
pub(super) struct TurnedRows {
    /// The list.
    pub(super) rows: Slice,
    /// Each table: for every position the cosine and sine of each pair.
    pub(super) tables: Vec<Slice>,
    /// The list and the tables.
    pub(super) whole: Slice,
}

impl TurnedRows {
    /// Room for `rows` rows, and tables for `positions` positions.
    ///
    /// # Errors
    /// Out of memory, or the device was lost.
    pub(super) fn load(loader: &mut Loader<'_>, ropes: &[RopeSpec], rows: usize, positions: usize) -> Result<Self> {
        let row_bytes = rows.next_multiple_of(ROW_UNIT) as u64 * ROW_BYTES;
        let tables: Vec<_> = ropes.iter().map(|rope| cos_sin_table(rope, positions)).collect();
        let align = loader.gpu.profile.offset_align.max(ROW_BYTES);
        let mut end = row_bytes;
        let mut places = Vec::new();
        for table in &tables {
            let start = end.next_multiple_of(align);
            end = start + size_of_val(&table[..]) as u64;
            places.push(start..end);
        }
        let buffer = loader.gpu.memory.create("rows and rotations", end.next_multiple_of(ROW_BYTES), Use::Storage)?;
        for (table, place) in tables.iter().zip(&places) {
            loader.uploader.write(&buffer, place.start, bytemuck::cast_slice(table))?;
        }
        Ok(Self {
            rows: buffer.slice(0, row_bytes),
            tables: places.iter().map(|place| buffer.slice(place.start, place.end - place.start)).collect(),
            whole: buffer.whole(),
        })
    }

    /// Where table `index` begins, in vectors of four from the first row; `None` if no binding holds all of them.
    /// For no table it is 0.
    pub(super) fn start(&self, index: Option<usize>, binding_limit: u64) -> Option<u32> {
        let table = index.map_or(&self.rows, |index| &self.tables[index]);
        let fits = self.whole.bytes <= binding_limit;
        fits.then(|| ((table.offset - self.rows.offset) / ROW_BYTES) as u32)
    }
}
