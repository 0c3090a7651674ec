//! Random choices that are the same wherever a seed is.

/// Numbers that overflow sums, products and allocations, or sit next to a limit.
pub const HOSTILE: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    31,
    33,
    64,
    0x7f,
    255,
    0xffff,
    65_537,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 61,
    (1 << 62) + 1,
    1 << 63,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Dice(pub u64);

impl Dice {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// A number that is hostile, small, or any.
    pub fn number(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => self.of(&HOSTILE),
            2 => self.below(100) as u64,
            _ => self.word() >> self.below(64),
        }
    }

    /// Changes `bytes` here and there; those before `header` are hit more often.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, header: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = if self.one_in(8) { bytes.len() } else { header.clamp(1, bytes.len()) };
        let at = self.below(end);
        let piece = at..(at + 1 + self.below(64)).min(bytes.len());
        match self.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at] = self.word() as u8,
            2 => bytes[at] ^= 1 << self.below(8),
            3 => drop(bytes.drain(piece)),
            4 => {
                let copy = bytes[piece].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let fill = self.of(&[0x00, 0x80, 0xff, b'"', b'[', b'9']);
                bytes[piece].fill(fill);
            }
        }
    }
}
