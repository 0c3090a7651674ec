//! KV memory of the reference: paged as on the device, and flat for one sequence.
//!
//! Paged memory remembers the position of every entry, so that a plan which reads what was never written, or a block
//! that went to somebody else, is refused rather than computed.

use super::model::Row;
use crate::base::{BLOCK_TOKENS, BlockId};
use crate::model::spec::ModelSpec;

/// What KV entries are rounded to when they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPrecision {
    /// Not rounded.
    F64,
    /// To the nearest f16, as the device does with `--kv-dtype f16`.
    F16,
}

impl KvPrecision {
    fn round(self, value: f64) -> f64 {
        match self {
            Self::F64 => value,
            // By way of f32, which is what the kernel rounds.
            Self::F16 => half::f16::from_f32(value as f32).to_f64(),
        }
    }
}

/// Where attention finds keys and values. Rows are `[kv_heads][head_dim]`.
pub trait KvMemory {
    /// Keeps the key and value of `row`'s position.
    fn store(&mut self, layer: usize, row: &Row, key: &[f64], value: &[f64]);
    /// The key at `position` of the sequence that `row` belongs to.
    fn key(&self, layer: usize, row: &Row, position: usize) -> &[f64];
    /// The value there.
    fn value(&self, layer: usize, row: &Row, position: usize) -> &[f64];
}

/// Memory of a single sequence: position is the index.
#[derive(Debug, Default)]
pub struct FlatKv {
    /// Keys of each layer, `[position][kv_heads][head_dim]`.
    pub keys: Vec<Vec<f64>>,
    /// Values of each layer.
    pub values: Vec<Vec<f64>>,
    widths: Vec<usize>,
}

impl FlatKv {
    /// Empty memory.
    pub fn new(spec: &ModelSpec) -> Self {
        let widths: Vec<usize> = spec.layers.iter().map(|layer| layer.attn.kv_width()).collect();
        Self { keys: vec![Vec::new(); widths.len()], values: vec![Vec::new(); widths.len()], widths }
    }
}

impl KvMemory for FlatKv {
    fn store(&mut self, layer: usize, row: &Row, key: &[f64], value: &[f64]) {
        assert_eq!(self.keys[layer].len(), row.position * self.widths[layer], "flat memory fills in order");
        self.keys[layer].extend(key);
        self.values[layer].extend(value);
    }

    fn key(&self, layer: usize, _: &Row, position: usize) -> &[f64] {
        &self.keys[layer][position * self.widths[layer]..][..self.widths[layer]]
    }

    fn value(&self, layer: usize, _: &Row, position: usize) -> &[f64] {
        &self.values[layer][position * self.widths[layer]..][..self.widths[layer]]
    }
}

/// Blocks in all layers and a block table for each slot.
#[derive(Debug)]
pub struct PagedKv {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    widths: Vec<usize>,
    /// Position of the entry in each token place of each block.
    positions: Vec<Option<u32>>,
    tables: Vec<Vec<Option<BlockId>>>,
    precision: KvPrecision,
}

impl PagedKv {
    /// Unwritten blocks, empty tables.
    pub fn new(spec: &ModelSpec, block_count: usize, slot_count: usize, precision: KvPrecision) -> Self {
        let widths: Vec<usize> = spec.layers.iter().map(|layer| layer.attn.kv_width()).collect();
        let places = block_count * BLOCK_TOKENS;
        let memory: Vec<Vec<f64>> = widths.iter().map(|width| vec![0.0; places * width]).collect();
        Self {
            keys: memory.clone(),
            values: memory,
            widths,
            positions: vec![None; places],
            tables: vec![Vec::new(); slot_count],
            precision,
        }
    }

    /// Changes what later entries are rounded to.
    pub fn set_precision(&mut self, precision: KvPrecision) {
        self.precision = precision;
    }

    /// Empties the table of `slot`.
    pub fn clear_table(&mut self, slot: usize) {
        self.tables[slot].clear();
    }

    /// Entry `index` of the table of `slot` becomes `block`.
    ///
    /// # Errors
    /// There is no such block.
    pub fn set_table(&mut self, slot: usize, index: usize, block: BlockId) -> Result<(), String> {
        self.check_block(block)?;
        let table = &mut self.tables[slot];
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index] = Some(block);
        Ok(())
    }

    /// Copies a block in all layers.
    ///
    /// # Errors
    /// There is no such block.
    pub fn copy_block(&mut self, source: BlockId, target: BlockId) -> Result<(), String> {
        self.check_block(source)?;
        self.check_block(target)?;
        let (from, to) = (source.index() * BLOCK_TOKENS, target.index() * BLOCK_TOKENS);
        self.positions.copy_within(from..from + BLOCK_TOKENS, to);
        for (layer, width) in self.widths.iter().enumerate() {
            for memory in [&mut self.keys[layer], &mut self.values[layer]] {
                memory.copy_within(from * width..(from + BLOCK_TOKENS) * width, to * width);
            }
        }
        Ok(())
    }

    /// Marks the entry of `row` as written, before [`KvMemory::store`] writes it.
    ///
    /// # Errors
    /// The table has no block there, or the block is also in the table of another slot and so must not be written.
    pub fn claim(&mut self, row: &Row) -> Result<(), String> {
        let place = self
            .place(row.slot, row.position)
            .ok_or_else(|| format!("slot {} has no block for position {}", row.slot, row.position))?;
        let block = Some(BlockId((place / BLOCK_TOKENS) as u32));
        if let Some(other) = (0..self.tables.len()).find(|&s| s != row.slot && self.tables[s].contains(&block)) {
            let block = place / BLOCK_TOKENS;
            return Err(format!("slot {} writes block {block}, which slot {other} shares", row.slot));
        }
        self.positions[place] = Some(row.position as u32);
        Ok(())
    }

    /// Checks that everything `row` attends to was written, for its position.
    ///
    /// # Errors
    /// Names the first position that was not.
    pub fn check_context(&self, row: &Row) -> Result<(), String> {
        for position in 0..=row.position {
            let found = self.place(row.slot, position).and_then(|place| self.positions[place]);
            if found != Some(position as u32) {
                let slot = row.slot;
                return Err(format!("slot {slot} reads position {position}, where its table leads to {found:?}"));
            }
        }
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), String> {
        let count = self.positions.len() / BLOCK_TOKENS;
        if block.index() < count { Ok(()) } else { Err(format!("block {block} of {count}")) }
    }

    fn place(&self, slot: usize, position: usize) -> Option<usize> {
        let block = (*self.tables[slot].get(position / BLOCK_TOKENS)?)?;
        Some(block.index() * BLOCK_TOKENS + position % BLOCK_TOKENS)
    }

    fn checked_place(&self, row: &Row, position: usize) -> usize {
        self.place(row.slot, position).expect("check_context saw an entry for every position up to the row's")
    }
}

impl KvMemory for PagedKv {
    fn store(&mut self, layer: usize, row: &Row, key: &[f64], value: &[f64]) {
        let start = self.checked_place(row, row.position) * self.widths[layer];
        for (memory, from) in [(&mut self.keys[layer], key), (&mut self.values[layer], value)] {
            for (to, &from) in memory[start..].iter_mut().zip(from) {
                *to = self.precision.round(from);
            }
        }
    }

    fn key(&self, layer: usize, row: &Row, position: usize) -> &[f64] {
        &self.keys[layer][self.checked_place(row, position) * self.widths[layer]..][..self.widths[layer]]
    }

    fn value(&self, layer: usize, row: &Row, position: usize) -> &[f64] {
        &self.values[layer][self.checked_place(row, position) * self.widths[layer]..][..self.widths[layer]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::{AttnSpec, LayerSpec, MlpSpec, NormSpec};

    fn memory(precision: KvPrecision) -> PagedKv {
        let norm = NormSpec::rms(1e-5);
        let layer = LayerSpec::pre_norm(norm, AttnSpec::plain(1, 1, 2), MlpSpec::silu_gated(2));
        let spec = ModelSpec {
            family: "test",
            vocab_size: 2,
            hidden_size: 2,
            max_position_embeddings: 64,
            embed_scale: 1.0,
            learned_positions: false,
            layers: vec![layer.clone(), layer],
            final_norm: norm,
            tied_head: true,
            final_softcap: None,
            ropes: Vec::new(),
        };
        PagedKv::new(&spec, 4, 2, precision)
    }

    fn row(slot: usize, position: usize) -> Row {
        Row { token: 0, position, slot }
    }

    #[test]
    fn entries_are_found_through_the_table_and_survive_a_copy() {
        let mut kv = memory(KvPrecision::F64);
        kv.set_table(1, 0, BlockId(3)).unwrap();
        kv.set_table(1, 1, BlockId(0)).unwrap();
        for position in 0..17 {
            kv.claim(&row(1, position)).unwrap();
            kv.check_context(&row(1, position)).unwrap();
            for layer in 0..2 {
                kv.store(layer, &row(1, position), &[position as f64, layer as f64], &[-1.0, position as f64]);
            }
        }
        assert_eq!(kv.key(1, &row(1, 16), 5), [5.0, 1.0]);
        assert_eq!(kv.value(0, &row(1, 16), 16), [-1.0, 16.0]);
        kv.copy_block(BlockId(3), BlockId(2)).unwrap();
        kv.set_table(0, 0, BlockId(2)).unwrap();
        kv.check_context(&row(0, 15)).unwrap();
        assert_eq!(kv.key(1, &row(0, 15), 5), [5.0, 1.0]);
    }

    #[test]
    fn wrong_plans_are_refused() {
        let mut kv = memory(KvPrecision::F64);
        assert_eq!(kv.set_table(0, 0, BlockId(4)).unwrap_err(), "block 4 of 4");
        assert_eq!(kv.claim(&row(0, 0)).unwrap_err(), "slot 0 has no block for position 0");
        kv.set_table(0, 0, BlockId(1)).unwrap();
        kv.claim(&row(0, 1)).unwrap();
        assert!(kv.check_context(&row(0, 1)).unwrap_err().contains("reads position 0"));
        // The block's entries belong to positions 0..16, not to 16..32.
        kv.set_table(1, 0, BlockId(1)).unwrap();
        kv.set_table(1, 1, BlockId(1)).unwrap();
        assert!(kv.check_context(&row(1, 17)).is_err());
        assert!(kv.claim(&row(1, 2)).unwrap_err().contains("which slot 0 shares"));
    }

    #[test]
    fn f16_memory_rounds() {
        let mut kv = memory(KvPrecision::F16);
        kv.set_table(0, 0, BlockId(0)).unwrap();
        kv.store(0, &row(0, 0), &[1.0 / 3.0, 0.5], &[2049.0, -0.1]);
        assert_eq!(kv.key(0, &row(0, 0), 0), [0.333251953125, 0.5]);
        // Halfway between 2048 and 2050: to the even one.
        assert_eq!(kv.value(0, &row(0, 0), 0), [2048.0, -0.0999755859375]);
    }
}
