//! KV memory of the reference: paged as on the device, and flat for one sequence.
//!
//! Paged memory remembers the position of every entry, so that a plan which reads what was never written, or a block
//! that went to somebody else, is refused rather than computed. Blocks also go to the host and come back.

use super::kv_precision::KvPrecision;
use super::model::Row;
use crate::base::{BLOCK_TOKENS, BlockId, HostBlockId};
use crate::model::spec::ModelSpec;

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
#[derive(Debug)]
pub struct FlatKv {
    /// Keys of each layer, `[position][kv_heads][head_dim]`.
    pub keys: Vec<Vec<f64>>,
    /// Values of each layer.
    pub values: Vec<Vec<f64>>,
    widths: Vec<usize>,
    precision: KvPrecision,
}

impl FlatKv {
    /// Empty memory.
    pub fn new(spec: &ModelSpec, precision: KvPrecision) -> Self {
        let widths: Vec<usize> = spec.layers.iter().map(|layer| layer.attn.kv_width()).collect();
        Self { keys: vec![Vec::new(); widths.len()], values: vec![Vec::new(); widths.len()], widths, precision }
    }
}

impl KvMemory for FlatKv {
    fn store(&mut self, layer: usize, row: &Row, key: &[f64], value: &[f64]) {
        let start = row.position * self.widths[layer];
        assert_eq!(self.keys[layer].len(), start, "flat memory fills in order");
        for (memory, row) in [(&mut self.keys[layer], key), (&mut self.values[layer], value)] {
            memory.extend(row);
            self.precision.round(&mut memory[start..]);
        }
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
    /// Blocks that were saved.
    host: Vec<Option<SavedBlock>>,
    precision: KvPrecision,
    /// What no row of this distance reads, if all layers have a window.
    window: Option<usize>,
    /// The position after the last one written through each table.
    next: Vec<usize>,
}

/// A block's content away from the device.
#[derive(Clone, Debug)]
struct SavedBlock {
    positions: Vec<Option<u32>>,
    /// Keys, then values, of each layer.
    entries: Vec<Vec<f64>>,
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
            host: Vec::new(),
            precision,
            window: spec.longest_window(),
            next: vec![0; slot_count],
        }
    }

    /// What entries are rounded to.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// Changes what later entries are rounded to.
    pub fn set_precision(&mut self, precision: KvPrecision) {
        self.precision = precision;
    }

    /// Empties the table of `slot`.
    pub fn clear_table(&mut self, slot: usize) {
        self.tables[slot].clear();
        self.next[slot] = 0;
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

    /// Makes room for `count` blocks on the host, all of them without content.
    pub fn set_host_blocks(&mut self, count: usize) {
        self.host = vec![None; count];
    }

    /// Copies a block in all layers to the host.
    ///
    /// # Errors
    /// There is no such block, here or on the host.
    pub fn save_block(&mut self, block: BlockId, host: HostBlockId) -> Result<(), String> {
        self.check_block(block)?;
        let places = block.index() * BLOCK_TOKENS..(block.index() + 1) * BLOCK_TOKENS;
        let mut entries = Vec::with_capacity(2 * self.widths.len());
        for (layer, width) in self.widths.iter().enumerate() {
            for memory in [&self.keys[layer], &self.values[layer]] {
                entries.push(memory[places.start * width..places.end * width].to_vec());
            }
        }
        let count = self.host.len();
        let saved = self.host.get_mut(host.index()).ok_or_else(|| format!("host block {host} of {count}"))?;
        *saved = Some(SavedBlock { positions: self.positions[places].to_vec(), entries });
        Ok(())
    }

    /// Fills a block in all layers from the host.
    ///
    /// # Errors
    /// There is no such block, or nothing was saved to the host's.
    pub fn load_block(&mut self, host: HostBlockId, block: BlockId) -> Result<(), String> {
        self.check_block(block)?;
        let saved = self.host.get(host.index()).and_then(Option::as_ref);
        let SavedBlock { positions, entries } = saved.ok_or_else(|| format!("host block {host} was never saved"))?;
        let start = block.index() * BLOCK_TOKENS;
        self.positions[start..start + BLOCK_TOKENS].copy_from_slice(positions);
        for (layer, (width, saved)) in self.widths.iter().zip(entries.chunks(2)).enumerate() {
            for (memory, from) in [&mut self.keys[layer], &mut self.values[layer]].into_iter().zip(saved) {
                memory[start * width..][..from.len()].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Marks the entry of `row` as written, before [`KvMemory::store`] writes it.
    ///
    /// # Errors
    /// The table has no block there, or the block is also in the table of another slot and so must not be written. Blocks
    /// that slid out of the other's window may be anybody's.
    pub fn claim(&mut self, row: &Row) -> Result<(), String> {
        let place = self
            .place(row.slot, row.position)
            .ok_or_else(|| format!("slot {} has no block for position {}", row.slot, row.position))?;
        let block = Some(BlockId((place / BLOCK_TOKENS) as u32));
        let visible = |slot: usize| {
            let table = &self.tables[slot];
            &table[(self.first_visible(self.next[slot]) / BLOCK_TOKENS).min(table.len())..]
        };
        if let Some(other) = (0..self.tables.len()).find(|&slot| slot != row.slot && visible(slot).contains(&block)) {
            let block = place / BLOCK_TOKENS;
            return Err(format!("slot {} writes block {block}, which slot {other} shares", row.slot));
        }
        self.next[row.slot] = self.next[row.slot].max(row.position + 1);
        self.positions[place] = Some(row.position as u32);
        Ok(())
    }

    /// Checks that everything `row` attends to was written, for its position.
    ///
    /// # Errors
    /// Names the first position that was not.
    pub fn check_context(&self, row: &Row) -> Result<(), String> {
        for position in self.first_visible(row.position)..=row.position {
            let found = self.place(row.slot, position).and_then(|place| self.positions[place]);
            if found != Some(position as u32) {
                let slot = row.slot;
                return Err(format!("slot {slot} reads position {position}, where its table leads to {found:?}"));
            }
        }
        Ok(())
    }

    /// The first position that a row at `position` reads.
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
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
        self.place(row.slot, position).expect("check_context saw an entry for every position that the row reads")
    }
}

impl KvMemory for PagedKv {
    fn store(&mut self, layer: usize, row: &Row, key: &[f64], value: &[f64]) {
        let start = self.checked_place(row, row.position) * self.widths[layer];
        for (memory, from) in [(&mut self.keys[layer], key), (&mut self.values[layer], value)] {
            let entry = &mut memory[start..start + from.len()];
            entry.copy_from_slice(from);
            self.precision.round(entry);
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
    fn entries_go_to_the_host_and_come_back_to_another_block() {
        let mut kv = memory(KvPrecision::F64);
        kv.set_host_blocks(2);
        kv.set_table(0, 0, BlockId(1)).unwrap();
        for position in 0..3 {
            kv.claim(&row(0, position)).unwrap();
            for layer in 0..2 {
                kv.store(layer, &row(0, position), &[position as f64, layer as f64], &[-1.0, 7.0]);
            }
        }
        assert_eq!(kv.load_block(HostBlockId(1), BlockId(3)).unwrap_err(), "host block 1 was never saved");
        kv.save_block(BlockId(1), HostBlockId(1)).unwrap();
        kv.store(1, &row(0, 2), &[9.0, 9.0], &[9.0, 9.0]);
        kv.load_block(HostBlockId(1), BlockId(3)).unwrap();
        kv.set_table(0, 0, BlockId(3)).unwrap();
        kv.check_context(&row(0, 2)).unwrap();
        assert!(kv.check_context(&row(0, 3)).is_err(), "what was unwritten stays so");
        assert_eq!((kv.key(1, &row(0, 2), 2), kv.value(1, &row(0, 2), 2)), (&[2.0, 1.0][..], &[-1.0, 7.0][..]));
        assert_eq!(kv.key(0, &row(0, 2), 1), [1.0, 0.0]);
        assert_eq!(kv.save_block(BlockId(4), HostBlockId(0)).unwrap_err(), "block 4 of 4");
        assert_eq!(kv.save_block(BlockId(0), HostBlockId(2)).unwrap_err(), "host block 2 of 2");
    }

    #[test]
    fn blocks_outside_all_windows_may_go_to_others() {
        let mut kv = memory(KvPrecision::F64);
        kv.window = Some(16);
        for (index, block) in [1, 2, 3].into_iter().enumerate() {
            kv.set_table(0, index, BlockId(block)).unwrap();
        }
        for position in 0..30 {
            kv.claim(&row(0, position)).unwrap();
        }
        kv.set_table(1, 1, BlockId(1)).unwrap();
        // The row at 30 still reads position 15, the last one of block 1; the row at 31 does not.
        assert!(kv.claim(&row(1, 16)).unwrap_err().contains("which slot 0 shares"));
        kv.claim(&row(0, 30)).unwrap();
        kv.claim(&row(1, 16)).unwrap();
        kv.claim(&row(0, 31)).unwrap();
        kv.check_context(&row(0, 31)).unwrap();
        assert!(kv.check_context(&row(0, 0)).unwrap_err().contains("leads to Some(16)"));
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
    fn what_is_stored_is_rounded() {
        let mut kv = memory(KvPrecision::F16);
        kv.set_table(0, 0, BlockId(0)).unwrap();
        kv.store(0, &row(0, 0), &[1.0 / 3.0, 0.5], &[2049.0, -0.1]);
        assert_eq!(kv.key(0, &row(0, 0), 0), [0.333251953125, 0.5]);
        assert_eq!(kv.value(0, &row(0, 0), 0), [2048.0, -0.0999755859375]);
    }
}
