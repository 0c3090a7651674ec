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

    /// The file bytes of `elements` weights, whole blocks of 32 or 256.
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
            _ => (0..elements / dtype.block_elements()).for_each(|_| self.block(dtype, spread, &mut bytes)),
        }
        bytes
    }

    /// One quantised block: random bytes with scales (and minima) of a sane or an extreme size in their places. Three of
    /// four extreme blocks have all other bytes alike, so that codes and inner scales are all at an end.
    fn block(&mut self, dtype: DType, spread: Spread, bytes: &mut Vec<u8>) {
        let fill = match (spread, self.below(4)) {
            (Spread::Extreme, 0) => Some(0x00),
            (Spread::Extreme, 1) => Some(0xff),
            (Spread::Extreme, 2) => Some(0x80),
            _ => None,
        };
        let start = bytes.len();
        bytes.extend((0..dtype.block_bytes()).map(|_| fill.unwrap_or_else(|| self.word() as u8)));
        let halves: &[usize] = match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::MXFP4 => &[],
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
        };
        // Inner scales multiply by up to 127.
        let unit = if dtype.block_elements() > 32 { 0.002 } else { 0.05 };
        for at in halves {
            let value = match (spread, self.below(6)) {
                (Spread::Extreme, 0) => f16::from_f32(0.0),
                // A few thousand times these are still far from the end of f32, and the products still fit.
                (Spread::Extreme, 1) => f16::MIN,
                (Spread::Extreme, 2) => f16::MIN_POSITIVE_SUBNORMAL,
                _ => f16::from_f32(unit * self.number(Spread::Heavy).clamp(-50.0, 50.0)),
            };
            bytes[start + at..start + at + 2].copy_from_slice(&value.to_bits().to_le_bytes());
        }
        if dtype == DType::MXFP4 {
            bytes[start] = match (spread, self.below(6)) {
                // The smallest scale that is not flushed, and one whose products still fit.
                (Spread::Extreme, 0) => 2,
                (Spread::Extreme, 1) => 160,
                _ => 118 + self.below(14) as u8,
            };
        }
    }
}
