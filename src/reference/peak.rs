//! Twin of `peak`: what its loops leave behind. All numbers are small integers, so that results must be exact.

/// Multiply-adds with factor and addend 1: each of three sums, begun at `lane & 7` and the two numbers after it, counts the
/// `steps`.
pub fn multiply_add(lane: u32, steps: u32) -> [u32; 4] {
    let first = lane & 7;
    [3 * first + 3 + 3 * steps; 4]
}

/// Dot products of a sum's four bytes with those of `factor`, added to the sum.
pub fn dot(lane: u32, factor: u32, steps: u32) -> [u32; 4] {
    let sums = (0..3).map(|offset| {
        let mut sum = (lane & 7) as i32 + offset;
        for _ in 0..steps {
            let bytes = sum.to_le_bytes().into_iter().zip(factor.to_le_bytes());
            let dot: i32 = bytes.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum();
            sum = sum.wrapping_add(dot);
        }
        sum
    });
    [sums.fold(0i32, i32::wrapping_add) as u32; 4]
}

/// The sum of every `stride`th vector from `first` on, `steps` of them.
pub fn read(source: &[[u32; 4]], first: usize, stride: usize, steps: usize) -> [u32; 4] {
    source.iter().skip(first).step_by(stride).take(steps).fold([0; 4], |sum, vector| {
        std::array::from_fn(|component| u32::wrapping_add(sum[component], vector[component]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_hand() {
        assert_eq!(multiply_add(9, 2), [3 + 4 + 5; 4]);
        // 1 -> 1 + 1 * 3 = 4; 2 -> 8; 3 -> 12.
        assert_eq!(dot(1, 3, 1), [24; 4]);
        // Times -2: 1, 2, 3 -> -1, -2, -3, whose lowest bytes bring them back.
        assert_eq!(dot(1, 0xfe, 1), [-6i32 as u32; 4]);
        assert_eq!(dot(1, 0xfe, 2), [6; 4]);
        assert_eq!(read(&[[1; 4], [2; 4], [4; 4], [8; 4]], 1, 2, 2), [10; 4]);
    }
}
