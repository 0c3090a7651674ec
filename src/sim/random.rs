//! Random numbers for workloads and simulations: the seed says everything, on every machine.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Stream `index` of a seed, unrelated to its neighbours.
    pub fn stream(seed: u64, index: u64) -> Self {
        let mut outer = Self(seed);
        let mut inner = Self(outer.word() ^ index.wrapping_mul(0xd134_2543_de82_ef95));
        Self(inner.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..end`; 0 if that is empty. The bias of the multiplication is below 2^-32 for the sizes in use.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.word()) * end as u128) >> 64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A real number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Exponentially distributed: the gap between arrivals of a Poisson process with this mean gap.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }

    /// Standard normal, by the Box-Muller transform.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let words: Vec<u64> = (0..3).map(|_| random.word()).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn draws_have_their_moments() {
        let mut random = Random::new(7);
        let count = 200_000;
        let mean = |draw: &mut dyn FnMut() -> f64| (0..count).map(|_| draw()).sum::<f64>() / f64::from(count);
        // Six standard errors each: 1, 1 and 0.29 over the root of the count.
        let error = 6.0 / f64::from(count).sqrt();
        assert!((mean(&mut || random.exponential(2.0)) - 2.0).abs() < 2.0 * error);
        assert!(mean(&mut || random.normal()).abs() < error);
        assert!((mean(&mut || random.normal().powi(2)) - 1.0).abs() < 1.5 * error);
        assert!((mean(&mut || random.unit()) - 0.5).abs() < 0.3 * error);
        assert!((mean(&mut || random.below(10) as f64) - 4.5).abs() < 3.0 * error);
    }

    #[test]
    fn ranges_reach_their_ends_and_no_further() {
        let mut random = Random::new(1);
        let seen: std::collections::BTreeSet<usize> = (0..400).map(|_| random.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!((random.below(0), random.between(5, 5)), (0, 5));
        assert_ne!(Random::stream(1, 0).word(), Random::stream(1, 1).word());
        assert_ne!(Random::stream(1, 0).word(), Random::stream(2, 0).word());
    }
}
