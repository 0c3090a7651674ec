//! One of several texts.

use super::limits::{MAX_CHOICES, check_source};
use crate::error::{Error, Result};
use std::collections::HashSet;

/// An expression that matches exactly the choices.
///
/// # Errors
/// No choice, an empty one, the same one twice, and more than the limits.
pub(super) fn expression(choices: &[String]) -> Result<String> {
    if choices.is_empty() {
        return Err(Error::config("choice needs at least one text"));
    }
    if choices.len() > MAX_CHOICES {
        return Err(Error::config(format!("choice has {} texts, more than the limit of {MAX_CHOICES}", choices.len())));
    }
    check_source("choice", choices.iter().map(String::len).sum())?;
    let mut seen = HashSet::new();
    for choice in choices {
        if choice.is_empty() {
            return Err(Error::config("choice has an empty text, which no token makes; leave it out"));
        }
        if !seen.insert(choice) {
            return Err(Error::config(format!("choice has {choice:?} twice")));
        }
    }
    let escaped: Vec<String> = choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
    Ok(format!("(?:{})", escaped.join("|")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_taken_as_they_stand() {
        let choices = ["a.b".to_owned(), "(c|d)*".to_owned(), "\n/".to_owned()];
        let expression = regex::Regex::new(&format!("^{}$", expression(&choices).unwrap())).unwrap();
        assert!(choices.iter().all(|choice| expression.is_match(choice)));
        assert!(!expression.is_match("axb") && !expression.is_match("c"));
    }

    #[test]
    fn choices_that_mean_nothing_are_refused() {
        let many: Vec<String> = (0..=MAX_CHOICES).map(|at| at.to_string()).collect();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (choices, part) in [
            (words(&[]), "at least one"),
            (words(&["a", ""]), "empty text"),
            (words(&["a", "b", "a"]), "\"a\" twice"),
            (many, "10001 texts"),
        ] {
            let error = expression(&choices).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
