//! Inputs for kernels: numbers of several temperaments, and blocks of every weight format. The same seed gives the same data.

use crate::base::DType;
use crate::base::rng::philox2x32;
use half::f16;

/// Temperament of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Within a few units of zero.
    Plain,
    /// Mostly small, some a thousandfold: what trained models have.
    Heavy,
    /// Zeros, +-6e4, denormals, and plain numbers between them.
    Extreme,
}

/// A stream of random numbers.
pub struct Source {
    seed: u32,
    count: u32,
}

impl Source {
    /// The stream of `seed`.
    pub fn new(seed: u32) -> Self {
        Self { seed, count: 0 }
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.count += 1;
        philox2x32([self.count, 0x5eed], self.seed)[0]
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(limit)) >> 32) as u32
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        self.word() as i32 as f32 / 2_147_483_648.0
    }

    /// One number of the given temperament.
    pub fn number(&mut self, spread: Spread) -> f32 {
        let plain = 2.0 * self.unit();
        match (spread, self.below(16)) {
            (Spread::Heavy, 0) => 1e3 * plain,
            (Spread::Heavy, _) => 0.3 * plain * plain * plain,
            (Spread::Extreme, 0..4) => 0.0,
            (Spread::Extreme, 4) => 6e4,
            (Spread::Extreme, 5) => -6e4,
            (Spread::Extreme, 6) => 1e-40,
            _ => plain,
        }
    }

    /// `count` numbers.
    pub fn numbers(&mut self, count: usize, spread: Spread) -> Vec<f32> {
        (0..count).map(|_| self.number(spread)).collect()
    }

    /// Positions 0 to `count` in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u32 + 1) as usize);
        }
        order
    }

    /// The file bytes of `elements` weights, a multiple of 32.
    pub fn weights(&mut self, dtype: DType, elements: usize, spread: Spread) -> Vec<u8> {
        let mut bytes = Vec::new();
        match dtype {
            DType::F32 => (0..elements).for_each(|_| bytes.extend(self.number(spread).to_le_bytes())),
            DType::F16 => {
                (0..elements).for_each(|_| bytes.extend(f16::from_f32(self.number(spread)).to_bits().to_le_bytes()));
            }
            DType::BF16 => {
                let narrow = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
                (0..elements).for_each(|_| bytes.extend(narrow(self.number(spread))));
            }
            _ => (0..elements / 32).for_each(|_| self.block(dtype, spread, &mut bytes)),
        }
        bytes
    }

    /// One quantised block: a scale, perhaps a minimum, then codes. Every second extreme block has all codes at an end.
    fn block(&mut self, dtype: DType, spread: Spread, bytes: &mut Vec<u8>) {
        let halves = if matches!(dtype, DType::Q4_1 | DType::Q5_1) { 2 } else { 1 };
        for _ in 0..halves {
            let value = match (spread, self.below(4)) {
                (Spread::Extreme, 0) => 0.0,
                // 127 of these are still far from the end of f32, and the products still fit.
                (Spread::Extreme, 1) => -400.0,
                _ => 0.05 * self.number(Spread::Heavy).clamp(-50.0, 50.0),
            };
            bytes.extend(f16::from_f32(value).to_bits().to_le_bytes());
        }
        let codes = dtype.block_bytes() - 2 * halves;
        let fill = match (spread, self.below(4)) {
            (Spread::Extreme, 0) => Some(0x00),
            (Spread::Extreme, 1) => Some(0xff),
            (Spread::Extreme, 2) => Some(0x80),
            _ => None,
        };
        bytes.extend((0..codes).map(|_| fill.unwrap_or_else(|| self.word() as u8)));
    }
}
