//! KV caches as cases fill them and read them back, in every storage. An entry is the row of one head at one position, counted as
//! `[block][kv head][position in block]`.

use crate::base::BLOCK_TOKENS;
use crate::kernels::KvDtype;
use crate::quant::q8_entries::{EntryLayout, Q8Block};
use crate::reference::tolerance::bound;
use half::f16;

/// Garbage in a cache that nobody has written: NaN in any storage.
pub const UNWRITTEN: u32 = 0x7fff_7fff;

/// How the keys or the values of a layer lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// Storage.
    pub kv: KvDtype,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl Cache {
    /// Words of `block_count` KV blocks that nobody has written.
    pub fn unwritten(&self, block_count: usize) -> Vec<u32> {
        vec![UNWRITTEN; block_count * BLOCK_TOKENS * self.kv_heads * self.kv.head_bytes(self.head_dim) / 4]
    }

    /// The entry of a head at a place, which is counted as `[block][position in block]`.
    pub fn entry(&self, place: usize, head: usize) -> usize {
        (place / BLOCK_TOKENS * self.kv_heads + head) * BLOCK_TOKENS + place % BLOCK_TOKENS
    }

    /// The words of an entry.
    pub fn words(&self, entry: usize) -> Vec<usize> {
        match self.kv {
            KvDtype::Q8_0 => EntryLayout { head_dim: self.head_dim }.words(entry).into_iter().flatten().collect(),
            KvDtype::F16 | KvDtype::F32 => {
                let count = self.kv.head_bytes(self.head_dim) / 4;
                (entry * count..(entry + 1) * count).collect()
            }
        }
    }

    /// Stores an entry and returns what it became.
    pub fn put(&self, cache: &mut [u32], entry: usize, head: &[f32]) -> Vec<f64> {
        match self.kv {
            KvDtype::F32 => {
                for (word, value) in self.words(entry).into_iter().zip(head) {
                    cache[word] = value.to_bits();
                }
            }
            KvDtype::F16 => {
                let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
                for (word, [low, high]) in self.words(entry).into_iter().zip(head.as_chunks().0) {
                    cache[word] = half(*low) | half(*high) << 16;
                }
            }
            KvDtype::Q8_0 => {
                let blocks: Vec<Q8Block> = head.as_chunks().0.iter().map(Q8Block::new).collect();
                EntryLayout { head_dim: self.head_dim }.write(cache, entry, &blocks);
            }
        }
        self.get(cache, entry).into_iter().map(f64::from).collect()
    }

    /// What an entry holds.
    pub fn get(&self, cache: &[u32], entry: usize) -> Vec<f32> {
        let words = || self.words(entry).into_iter().map(|word| cache[word]);
        match self.kv {
            KvDtype::F32 => words().map(f32::from_bits).collect(),
            KvDtype::F16 => {
                words().flat_map(|word| [word, word >> 16].map(|bits| f16::from_bits(bits as u16).to_f32())).collect()
            }
            KvDtype::Q8_0 => {
                let blocks = EntryLayout { head_dim: self.head_dim }.read(cache, entry);
                blocks.iter().flat_map(Q8Block::values).collect()
            }
        }
    }

    /// Allowances for storing `head`, for a bound of `ops` operations: WGSL lets f16 packing go to either neighbour.
    pub fn rounding(&self, head: &[f64], ops: usize) -> Vec<f64> {
        const SMALLEST_HALF: f64 = 1.0 / 16_777_216.0;
        let allowance = |error: f64| error / bound(1.0, ops);
        match self.kv {
            KvDtype::F32 => vec![0.0; head.len()],
            KvDtype::F16 => head.iter().map(|value| allowance(value.abs() / 1024.0 + SMALLEST_HALF)).collect(),
            KvDtype::Q8_0 => {
                // Half a step. At the ends of the range, what the scale was rounded down by is lost too, 127 times; but where that
                // is more than half a step, the scale is one of the smallest. Scales are rounded to the nearest.
                let block = |block: &[f64]| {
                    let size = block.iter().fold(0.0, |size: f64, value| size.max(value.abs()));
                    vec![allowance(0.5 * size / 127.0 * (1.0 + 1.0 / 2048.0) + 63.5 * SMALLEST_HALF); block.len()]
                };
                head.chunks(32).flat_map(block).collect()
            }
        }
    }
}
