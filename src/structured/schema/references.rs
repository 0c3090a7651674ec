//! What `$ref` names. Only places of the schema itself, as JSON pointers (RFC 6901): nothing is fetched.

use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;

/// The places that references named so far, in the order in which they were first named.
#[derive(Default)]
pub(super) struct References {
    places: Vec<(String, Unsaid)>,
    index_of: HashMap<(String, Unsaid), usize>,
}

/// What stands where a schema says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Unsaid {
    /// Any value whose numbers are bounded.
    Bounded,
    /// Any value: for schemas that another one bounds.
    Free,
}

impl References {
    /// The number of the place that `pointer` names; new places are appended.
    pub(super) fn index(&mut self, pointer: String, unsaid: Unsaid) -> usize {
        *self.index_of.entry((pointer, unsaid)).or_insert_with_key(|place| {
            self.places.push(place.clone());
            self.places.len() - 1
        })
    }

    /// The pointer of place `index`, and how it is translated.
    pub(super) fn place(&self, index: usize) -> Option<&(String, Unsaid)> {
        self.places.get(index)
    }
}

/// The JSON pointer of a reference, percent signs resolved.
///
/// # Errors
/// References to other documents, to anchors, and to places that `root` does not have.
pub(super) fn pointer_of(root: &Value, reference: &Value, place: &str) -> Result<String> {
    let Value::String(reference) = reference else {
        return Err(Error::config(format!("{place}: $ref is {reference}, but must be a string")));
    };
    let Some(fragment) = reference.strip_prefix('#') else {
        return Err(Error::config(format!(
            "{place}: $ref {reference:?} names another document, and nothing is fetched; copy it into $defs"
        )));
    };
    if !fragment.is_empty() && !fragment.starts_with('/') {
        return Err(Error::config(format!(
            "{place}: $ref {reference:?} names an anchor, which is not supported; name its place, such as #/$defs/name"
        )));
    }
    // Some generators write the root as "#/", which is the member with the empty name by the standard.
    let pointer = unescape_percent(fragment).filter(|pointer| root.pointer(pointer).is_some());
    let pointer = pointer.or_else(|| (fragment == "/").then(String::new));
    pointer.ok_or_else(|| {
        Error::config(format!("{place}: $ref {reference:?} names a place that the schema does not have"))
    })
}

/// `None` if what the percent signs stand for is no UTF-8.
fn unescape_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pointers_follow_the_standard() {
        let root = json!({"$defs": {"a b": {}, "a/b": {}, "m~n": {}}, "": {"x": 1}});
        for (reference, pointer) in [
            ("#", ""),
            ("#/$defs/a%20b", "/$defs/a b"),
            ("#/$defs/a~1b", "/$defs/a~1b"),
            ("#/%24defs/m~0n", "/$defs/m~0n"),
            ("#/", "/"),
        ] {
            assert_eq!(pointer_of(&root, &json!(reference), "#").unwrap(), pointer);
        }
        assert_eq!(pointer_of(&json!({}), &json!("#/"), "#").unwrap(), "");
    }

    #[test]
    fn what_is_not_here_is_refused_by_name() {
        for (reference, part) in [
            (json!("https://example.org/a.json"), "names another document"),
            (json!("#here"), "names an anchor"),
            (json!("#/$defs/gone"), "does not have"),
            (json!("#/%ff"), "does not have"),
            (json!(7), "must be a string"),
        ] {
            let error = pointer_of(&json!({}), &reference, "#/items").unwrap_err().to_string();
            assert!(error.starts_with("#/items: $ref ") && error.contains(part), "{error}");
        }
    }
}
