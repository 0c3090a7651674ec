//! Cuts a matrix into row ranges that fit one storage binding each.

use crate::error::{Error, Result};
use std::ops::Range;

/// Ranges of row groups, in order and without gaps, such that no plane of a range exceeds `binding_limit` bytes. The
/// fewest possible ranges, of nearly equal size, so that no dispatch is left with a sliver.
///
/// # Errors
/// A single group is larger than the limit.
pub fn shard_groups(
    groups: usize,
    largest_plane_bytes_per_group: usize,
    binding_limit: usize,
) -> Result<Vec<Range<usize>>> {
    let groups_per_shard = binding_limit.checked_div(largest_plane_bytes_per_group).unwrap_or(groups.max(1));
    if groups_per_shard == 0 {
        return Err(Error::memory(format!(
            "32 matrix rows need {largest_plane_bytes_per_group} bytes, but a binding of this device holds \
             {binding_limit}; raise the binding limit or choose a model with smaller layers"
        )));
    }
    let shard_count = groups.div_ceil(groups_per_shard);
    // Rounded share of `groups` that lies before shard `index`; u128 keeps the product exact.
    let start = |index: usize| (groups as u128 * index as u128 / shard_count as u128) as usize;
    Ok((0..shard_count).map(|index| start(index)..start(index + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_groups_within_the_limit() {
        for groups in [0, 1, 2, 3, 7, 31, 32, 33, 1000] {
            for (bytes, limit) in [(1, 1), (512, 1024), (512, 1535), (100, 100), (100, 99_999_999)] {
                let shards = shard_groups(groups, bytes, limit).unwrap();
                let mut next = 0;
                for shard in &shards {
                    assert_eq!(shard.start, next);
                    assert!(!shard.is_empty() && shard.len() * bytes <= limit, "{shard:?} of {bytes} in {limit}");
                    next = shard.end;
                }
                assert_eq!(next, groups);
                assert_eq!(shards.len(), groups.div_ceil(limit / bytes));
            }
        }
    }

    #[test]
    fn a_group_above_the_limit_is_an_error_that_names_both_sizes() {
        let message = shard_groups(4, 4097, 4096).unwrap_err().to_string();
        assert!(message.contains("4097") && message.contains("4096"), "{message}");
    }

    #[test]
    fn whole_matrices_stay_whole() {
        assert_eq!(shard_groups(5, 1024, 128 << 20).unwrap(), vec![0..5]);
    }
}
