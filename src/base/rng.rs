//! Counter-based random numbers: the same bits on the CPU and in `shaders/lib/rng.wgsl`.
//!
//! Philox-2x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). A draw depends on
//! `(seed, position)` alone: never on the batch, the slot or the step it happens to run in.

const MULTIPLIER: u32 = 0xD256_D193;
const WEYL: u32 = 0x9E37_79B9;
const ROUNDS: u32 = 10;

/// Two random words for `counter` under `key`.
pub fn philox2x32(counter: [u32; 2], key: u32) -> [u32; 2] {
    let [mut left, mut right] = counter;
    let mut key = key;
    for _ in 0..ROUNDS {
        let product = u64::from(MULTIPLIER) * u64::from(left);
        (left, right) = ((product >> 32) as u32 ^ key ^ right, product as u32);
        key = key.wrapping_add(WEYL);
    }
    [left, right]
}

/// The random word that decides the token sampled for `position` by a sequence with `seed`.
pub fn token_word(seed: u64, position: u32) -> u32 {
    // The high half of the seed joins the counter, so that all 64 bits matter.
    philox2x32([position, (seed >> 32) as u32], seed as u32)[0]
}

/// Maps a random word to the open interval (0, 1) with 23 bits, exactly representable in f32.
pub fn unit_interval(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        // Known-answer test of Random123 (kat_vectors, philox2x32 10).
        assert_eq!(philox2x32([0, 0], 0), [0xff1d_ae59, 0x6cd1_0df2]);
        assert_eq!(philox2x32([0xffff_ffff, 0xffff_ffff], 0xffff_ffff), [0x2c3f_628b, 0xab4f_d7ad]);
        assert_eq!(philox2x32([0x243f_6a88, 0x85a3_08d3], 0x1319_8a2e), [0xdd7c_e038, 0xf62a_4c12]);
    }

    #[test]
    fn unit_interval_is_open() {
        assert!(unit_interval(0) > 0.0);
        assert!(unit_interval(u32::MAX) < 1.0);
    }
}
