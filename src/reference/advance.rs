//! Twin of `advance`: what the state of a slot does when a token has been sampled for it.

use crate::base::TokenId;
use crate::sampling::SamplingRow;

/// The part of a slot's state that sampling changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProgress {
    /// Next input token.
    pub token: TokenId,
    /// Its position.
    pub position: u32,
    /// The row yields no further tokens.
    pub stopped: bool,
}

/// State after `sampled` was drawn from the logits of `position`. The token's own index is `position + 1`; the row
/// stops at one of the request's stop tokens, when the index after the token's is `position_limit` or more, and when
/// there was no token because the logits were not finite.
pub fn advance(position: u32, sampled: Option<TokenId>, row: &SamplingRow, position_limit: u32) -> SlotProgress {
    let index = position + 1;
    let stops = &row.stops[..(row.stop_count as usize).min(row.stops.len())];
    match sampled {
        Some(token) => {
            SlotProgress { token, position: index, stopped: stops.contains(&token) || index + 1 >= position_limit }
        }
        None => SlotProgress { token: 0, position: index, stopped: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    #[test]
    fn a_row_stops_at_stop_tokens_at_the_limit_and_without_a_token() {
        let row = SamplingRow::new(&SamplingParams::default(), 0, &[7, 9]);
        let stopped = |position, token, limit| advance(position, token, &row, limit).stopped;
        assert_eq!(advance(4, Some(3), &row, 100), SlotProgress { token: 3, position: 5, stopped: false });
        assert!(stopped(4, Some(9), 100));
        // Unused entries of the list are zeros and must not stop token 0.
        assert!(!stopped(4, Some(0), 100));
        // Token index 5 is the last one below 6.
        assert!(stopped(4, Some(3), 6));
        assert!(!stopped(4, Some(3), 7));
        assert!(stopped(4, None, 100));
    }
}
