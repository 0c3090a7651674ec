//! Stop texts: ends an output at the first stop, however its characters are spread over tokens, and never shows a part
//! of one. Stop tokens are the engine's and the sampler kernel's concern.
//!
//! An Aho-Corasick automaton over bytes (Aho and Corasick, 1975). Its depth is the length of the longest suffix of the
//! text that begins some stop, which is exactly what must be held back.

use std::collections::VecDeque;

/// Watches one request's text for its stops.
///
/// The text ends where the first stop is complete. If several are complete at the same byte, the longest counts, so
/// nothing depends on how the text was cut into pieces.
pub struct StopMatcher {
    nodes: Vec<Node>,
    keep: StopText,
    state: usize,
    /// Text that may become a stop, and during a push all text not given out.
    held: String,
    /// Text given out last.
    emitted: String,
    hit: Option<usize>,
}

/// What becomes of the stop that ends a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopText {
    /// It is cut off.
    Cut,
    /// It is kept, and so nothing has to be held back.
    Kept,
}

/// What a piece of text led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopStep<'a> {
    /// Text that is safe to show now.
    pub text: &'a str,
    /// Index of the stop that ended the output; `text` ends right before it, or with it where it is kept, and nothing follows.
    pub hit: Option<usize>,
}

#[derive(Default)]
struct Node {
    /// Next node by byte, ordered.
    children: Vec<(u8, usize)>,
    /// The node of the longest proper suffix that is a prefix of some stop.
    fallback: usize,
    depth: usize,
    /// Index and bytes of the longest stop that ends here.
    ends: Option<(usize, usize)>,
}

impl StopMatcher {
    /// Watches for `stops`. Empty ones are ignored.
    pub fn new(stops: &[String], keep: StopText) -> Self {
        let mut nodes = vec![Node::default()];
        for (index, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
            let mut at = 0;
            for byte in stop.bytes() {
                at = match child(&nodes, at, byte) {
                    Some(next) => next,
                    None => add_child(&mut nodes, at, byte),
                };
            }
            // The first of equal stops is reported.
            nodes[at].ends.get_or_insert((index, stop.len()));
        }
        link(&mut nodes);
        Self { nodes, keep, state: 0, held: String::new(), emitted: String::new(), hit: None }
    }

    /// Takes the next piece of text and returns what can be shown.
    pub fn push(&mut self, text: &str) -> StopStep<'_> {
        self.emitted.clear();
        if self.hit.is_none() {
            self.advance(text);
        }
        StopStep { text: &self.emitted, hit: self.hit }
    }

    /// Takes a piece of text in which no stop may be complete yet, and returns what can be shown. A stop that begins in it still
    /// counts.
    pub fn pass(&mut self, text: &str) -> &str {
        self.emitted.clear();
        if self.hit.is_none() {
            self.held.push_str(text);
            for byte in text.bytes() {
                self.state = step(&self.nodes, self.state, byte);
            }
            // At the end of a stop that did not count, only what may begin another one matters.
            while self.nodes[self.state].children.is_empty() && self.state != 0 {
                self.state = self.nodes[self.state].fallback;
            }
            self.give_out();
        }
        &self.emitted
    }

    /// Ends the text: returns what was held back, which is nothing after a stop.
    pub fn finish(&mut self) -> String {
        self.state = 0;
        std::mem::take(&mut self.held)
    }

    /// The stop that ended the output, if one did.
    pub fn hit(&self) -> Option<usize> {
        self.hit
    }

    fn advance(&mut self, text: &str) {
        let before = self.held.len();
        self.held.push_str(text);
        for (place, byte) in text.bytes().enumerate() {
            self.state = step(&self.nodes, self.state, byte);
            if let Some((index, length)) = self.nodes[self.state].ends {
                let cut = if self.keep == StopText::Cut { length } else { 0 };
                self.emitted.push_str(&self.held[..before + place + 1 - cut]);
                self.held.clear();
                self.hit = Some(index);
                return;
            }
        }
        self.give_out();
    }

    /// Moves what can no longer become part of a stop from `held` to `emitted`.
    fn give_out(&mut self) {
        // A stop begins at a character border, so what begins one does too.
        let waits = if self.keep == StopText::Cut { self.nodes[self.state].depth } else { 0 };
        let safe = self.held.len() - waits;
        self.emitted.push_str(&self.held[..safe]);
        self.held.drain(..safe);
    }
}

fn child(nodes: &[Node], at: usize, byte: u8) -> Option<usize> {
    let children = &nodes[at].children;
    children.binary_search_by_key(&byte, |(byte, _)| *byte).ok().map(|place| children[place].1)
}

fn add_child(nodes: &mut Vec<Node>, at: usize, byte: u8) -> usize {
    let next = nodes.len();
    nodes.push(Node { depth: nodes[at].depth + 1, ..Node::default() });
    let children = &mut nodes[at].children;
    let place = children.partition_point(|(other, _)| *other < byte);
    children.insert(place, (byte, next));
    next
}

fn step(nodes: &[Node], mut at: usize, byte: u8) -> usize {
    loop {
        match child(nodes, at, byte) {
            Some(next) => return next,
            None if at == 0 => return 0,
            None => at = nodes[at].fallback,
        }
    }
}

/// Sets the fallbacks, breadth first, so that those of shorter prefixes are ready.
fn link(nodes: &mut [Node]) {
    let mut queue: VecDeque<usize> = nodes[0].children.iter().map(|(_, next)| *next).collect();
    while let Some(at) = queue.pop_front() {
        for (byte, next) in nodes[at].children.clone() {
            let fallback = step(nodes, nodes[at].fallback, byte);
            nodes[next].fallback = fallback;
            // A node's own stop is longer than any that ends at its fallback.
            nodes[next].ends = nodes[next].ends.or(nodes[fallback].ends);
            queue.push_back(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    fn cutting(texts: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops(texts), StopText::Cut)
    }

    /// What may be shown of `text`, and the stop hit, by trying every end after the first `passed` bytes and every stop.
    fn oracle(stops: &[String], text: &str, passed: usize) -> (String, Option<usize>) {
        for end in passed + 1..=text.len() {
            let ending = stops.iter().enumerate().filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) = ending.min_by_key(|(index, stop)| (usize::MAX - stop.len(), *index)) {
                return (text[..end - stop.len()].to_string(), Some(index));
            }
        }
        let begins = |suffix: &str| stops.iter().any(|stop| stop.len() > suffix.len() && stop.starts_with(suffix));
        let borders = (0..=text.len()).filter(|place| text.is_char_boundary(*place));
        let held = borders.into_iter().find(|place| begins(&text[*place..])).expect("the empty suffix begins any stop");
        (text[..held].to_string(), None)
    }

    #[test]
    fn a_stop_over_three_pieces_is_cut_out() {
        let mut matcher = cutting(&["</tool>", "\n\n"]);
        assert_eq!(matcher.push("ok <"), StopStep { text: "ok ", hit: None });
        assert_eq!(matcher.push("/to"), StopStep { text: "", hit: None });
        assert_eq!(matcher.push("ol>more"), StopStep { text: "", hit: Some(0) });
        assert_eq!(matcher.push("more"), StopStep { text: "", hit: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn only_what_may_become_a_stop_waits() {
        let mut matcher = cutting(&["abac"]);
        assert_eq!(matcher.push("xaba").text, "x");
        assert_eq!(matcher.push("b").text, "ab", "aba-b leaves ab as the beginning of a stop");
        assert_eq!(matcher.push("z").text, "abz");
        assert_eq!(matcher.push("ab").text, "");
        assert_eq!(matcher.finish(), "ab");
    }

    #[test]
    fn without_stops_text_passes() {
        let mut matcher = cutting(&[]);
        assert_eq!(matcher.push("text"), StopStep { text: "text", hit: None });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn a_stop_within_another_ends_first() {
        let mut matcher = cutting(&["abcd", "bc"]);
        assert_eq!(matcher.push("xabcd"), StopStep { text: "xa", hit: Some(1) });
        let mut matcher = cutting(&["c", "abc"]);
        assert_eq!(matcher.push("xabc"), StopStep { text: "x", hit: Some(1) });
    }

    #[test]
    fn a_stop_that_is_kept_holds_nothing_back() {
        let mut matcher = StopMatcher::new(&stops(&["</tool>"]), StopText::Kept);
        assert_eq!(matcher.push("ok </to"), StopStep { text: "ok </to", hit: None });
        assert_eq!(matcher.push("ol>more"), StopStep { text: "ol>", hit: Some(0) });
        assert_eq!(matcher.push("more"), StopStep { text: "", hit: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn a_stop_that_does_not_count_yet_may_begin_one_that_does() {
        let mut matcher = cutting(&["aba"]);
        assert_eq!(matcher.pass("xaba"), "xab", "the last a may begin another one");
        assert_eq!(matcher.push("ba"), StopStep { text: "", hit: Some(0) });
        let mut matcher = cutting(&["ab", "abc"]);
        assert_eq!(matcher.pass("ab"), "");
        assert_eq!(matcher.push("c"), StopStep { text: "", hit: Some(1) });
        let mut matcher = cutting(&["ab"]);
        assert_eq!(matcher.pass("ab"), "ab");
        assert_eq!(matcher.push("c"), StopStep { text: "c", hit: None });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn any_splitting_shows_what_the_oracle_shows(
            stops in prop::collection::vec("[abé€]{1,5}", 1..4),
            pieces in prop::collection::vec("[abé€]{0,4}", 0..12),
            // Half the cases count stops from the start.
            passing in prop_oneof![Just(0usize), 1usize..6],
            kept in any::<bool>(),
        ) {
            let keep = if kept { StopText::Kept } else { StopText::Cut };
            let mut matcher = StopMatcher::new(&stops, keep);
            let (mut text, mut shown, mut passed) = (String::new(), String::new(), 0);
            // What is shown when the stops are kept: everything up to the end of the one that was hit.
            let whole = |(cut, hit): (String, Option<usize>), text: &str| match (kept, hit) {
                (false, _) => (cut, hit),
                (true, None) => (text.to_owned(), None),
                (true, Some(stop)) => (cut + &stops[stop], hit),
            };
            for (number, piece) in pieces.iter().enumerate() {
                text.push_str(piece);
                let hit = if number < passing {
                    passed = text.len();
                    shown.push_str(matcher.pass(piece));
                    None
                } else {
                    let step = matcher.push(piece);
                    shown.push_str(step.text);
                    step.hit
                };
                prop_assert_eq!((shown.clone(), hit), whole(oracle(&stops, &text, passed), &text));
            }
            let hit = matcher.hit();
            shown.push_str(&matcher.finish());
            let expected = if hit.is_some() { whole(oracle(&stops, &text, passed), &text).0 } else { text };
            prop_assert_eq!(shown, expected);
        }
    }
}
