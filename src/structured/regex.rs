//! Regular expressions: how large they are, and how ECMAScript writes what we read in Rust's notation.

use super::limits::MAX_REGEX_SIZE;
use crate::error::{Error, Result};
use regex_syntax::hir::{Hir, HirKind, Look};
use std::iter::Peekable;
use std::str::Chars;

/// Checks that an expression in Rust's notation can be followed.
///
/// # Errors
/// Broken expressions, those beyond [`MAX_REGEX_SIZE`], word boundaries and the like.
pub(super) fn check(expression: &str) -> Result<()> {
    // Parentheses so deep are no expression that someone wrote, and what follows recurses.
    let mut parser = regex_syntax::ParserBuilder::new().nest_limit(100).build();
    let parsed = parser.parse(expression).map_err(|error| {
        // A picture with the place, then a line that says what is wrong.
        let error = error.to_string();
        Error::config(error.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })?;
    if !parsed.properties().look_set().iter().all(|look| matches!(look, Look::Start | Look::End)) {
        return Err(Error::config("word boundaries and anchors of lines are not supported"));
    }
    if has_group_named_stop(&parsed) {
        return Err(Error::config(
            "a group may not be named \"stop\"; llguidance gives that name a meaning of its own",
        ));
    }
    match size(&parsed) {
        size if size > MAX_REGEX_SIZE => Err(Error::config(format!(
            "with its repetitions written out, the expression has {size} characters, more than the limit of \
             {MAX_REGEX_SIZE}"
        ))),
        _ => Ok(()),
    }
}

/// Characters with all repetitions written out.
fn size(expression: &Hir) -> u64 {
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(_) => 1,
        HirKind::Repetition(repetition) => {
            let count = repetition.max.unwrap_or(repetition.min.saturating_add(1));
            size(&repetition.sub).max(1).saturating_mul(u64::from(count))
        }
        HirKind::Capture(group) => size(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(0, |sum, part| sum.saturating_add(size(part)))
        }
    }
}

fn has_group_named_stop(expression: &Hir) -> bool {
    match expression.kind() {
        HirKind::Capture(group) => group.name.as_deref() == Some("stop") || has_group_named_stop(&group.sub),
        kind => kind.subs().iter().any(has_group_named_stop),
    }
}

/// An ECMAScript expression, as JSON Schema has them (ECMA-262, section 22.2), in Rust's notation. Unlike there, nothing
/// is said about where in a text it matches.
///
/// # Errors
/// Assertions and references to groups, which need more than a regular language; what the notation does not have; and what
/// [`check`] refuses.
pub(super) fn from_ecma_script(pattern: &str) -> Result<String> {
    let mut translator = Translator { rest: pattern.chars().peekable(), out: String::with_capacity(pattern.len() + 8) };
    translator.run()?;
    check(&translator.out)?;
    Ok(translator.out)
}

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

/// Where an escape stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Pattern,
    Class,
    NegatedClass,
}

impl Translator<'_> {
    fn run(&mut self) -> Result<()> {
        while let Some(character) = self.rest.next() {
            match character {
                '\\' => self.escape(Within::Pattern)?,
                // All but the four line ends.
                '.' => self.out.push_str("[^\\n\\r\\u{2028}\\u{2029}]"),
                '[' => self.class()?,
                '(' => self.group()?,
                '{' if !self.is_repetition() => self.out.push_str("\\{"),
                _ => self.out.push(character),
            }
        }
        Ok(())
    }

    /// Whether what follows a brace makes it a repetition; if not, it stands for itself.
    fn is_repetition(&self) -> bool {
        let rest: String = self.rest.clone().take_while(|character| *character != '}').take(24).collect();
        let closed = self.rest.clone().take(25).any(|character| character == '}');
        let (least, most) = rest.split_once(',').unwrap_or((&rest, ""));
        let digits = |text: &str| text.chars().all(|character| character.is_ascii_digit());
        closed && !least.is_empty() && digits(least) && digits(most)
    }

    fn group(&mut self) -> Result<()> {
        if self.rest.peek() != Some(&'?') {
            self.out.push('(');
            return Ok(());
        }
        self.rest.next();
        let kind: String = self.rest.clone().take(2).collect();
        match kind.chars().next() {
            Some(':') => {
                self.rest.next();
                self.out.push_str("(?:");
            }
            Some('<') if !matches!(kind.as_str(), "<=" | "<!") => {
                // Names serve nobody here.
                self.rest
                    .find(|character| *character == '>')
                    .ok_or_else(|| Error::config("a group's name has no end"))?;
                self.out.push('(');
            }
            Some('=' | '!' | '<') => return Err(Error::config("looking ahead or behind is not supported")),
            _ => return Err(Error::config("a group that begins with \"(?\" must go on with \":\" or \"<name>\"")),
        }
        Ok(())
    }

    /// What stands between brackets, of which the first is read.
    fn class(&mut self) -> Result<()> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.next_if_eq(&']').is_some() {
            // An empty class matches nothing, its opposite everything.
            if !negated {
                return Err(Error::config("the class [] matches nothing"));
            }
            self.out.push_str("(?s:.)");
            return Ok(());
        }
        self.out.push_str(if negated { "[^" } else { "[" });
        while let Some(character) = self.rest.next() {
            match character {
                ']' => {
                    self.out.push(']');
                    return Ok(());
                }
                '\\' => self.escape(if negated { Within::NegatedClass } else { Within::Class })?,
                // Rust reads operators in these.
                '[' | '&' | '~' => self.out.extend(['\\', character]),
                '-' if self.out.ends_with('-') => self.out.push_str("\\-"),
                _ => self.out.push(character),
            }
        }
        Err(Error::config("a class of characters has no end"))
    }

    /// What follows a backslash.
    fn escape(&mut self, within: Within) -> Result<()> {
        let Some(character) = self.rest.next() else {
            return Err(Error::config("the expression ends within an escape"));
        };
        // Letters and digits are those of ASCII. Engines disagree about white space: what an expression allows is what all
        // of them allow.
        const SPACE: &str = r"\t\n\x0B\x0C\r ";
        const ALL_SPACE: &str = r"\s\x1C-\x1F\u{FEFF}";
        let text = match (character, within) {
            ('d', Within::Pattern) => "[0-9]".to_owned(),
            ('d', _) => "0-9".to_owned(),
            ('D', _) => "[^0-9]".to_owned(),
            ('w', Within::Pattern) => "[0-9A-Za-z_]".to_owned(),
            ('w', _) => "0-9A-Za-z_".to_owned(),
            ('W', _) => "[^0-9A-Za-z_]".to_owned(),
            ('s', Within::Pattern) => format!("[{SPACE}]"),
            ('s', Within::Class) => SPACE.to_owned(),
            ('s', Within::NegatedClass) => ALL_SPACE.to_owned(),
            ('S', Within::Pattern | Within::Class) => format!("[^{ALL_SPACE}]"),
            ('S', Within::NegatedClass) => format!("[^{SPACE}]"),
            _ => return self.character_escape(character, within),
        };
        self.out.push_str(&text);
        Ok(())
    }

    fn character_escape(&mut self, character: char, within: Within) -> Result<()> {
        match character {
            'n' | 'r' | 't' | 'f' | 'v' => self.out.extend(['\\', character]),
            'b' if within != Within::Pattern => self.out.push_str("\\x08"),
            'b' | 'B' => return Err(Error::config("word boundaries are not supported")),
            '0' => self.out.push_str("\\x00"),
            '1'..='9' | 'k' => return Err(Error::config("references to groups are not supported")),
            'p' | 'P' if self.rest.peek() == Some(&'{') => {
                let name: String = self.rest.by_ref().take_while(|character| *character != '}').collect();
                self.out.push_str(&format!("\\{character}{name}}}"));
            }
            'x' => self.code(2)?,
            'u' if self.rest.next_if_eq(&'{').is_some() => {
                let digits: String = self.rest.by_ref().take_while(|character| *character != '}').collect();
                self.out.push_str(&format!("\\u{{{digits}}}"));
            }
            'u' => self.code(4)?,
            'c' => {
                let letter = self.rest.next().filter(char::is_ascii_alphabetic);
                let letter = letter.ok_or_else(|| Error::config("\\c must be followed by a letter"))?;
                self.out.push_str(&format!("\\x{:02X}", letter as u32 % 32));
            }
            _ if character.is_ascii_alphanumeric() => {
                return Err(Error::config(format!("the escape \\{character} is not supported")));
            }
            _ => self.out.push_str(&regex_syntax::escape(&character.to_string())),
        }
        Ok(())
    }

    /// A character by its number in `digits` hexadecimal digits; two of them for those that UTF-16 writes as a pair.
    fn code(&mut self, digits: usize) -> Result<()> {
        let mut units = vec![self.hexadecimal(digits)?];
        if (0xD800..0xDC00).contains(&units[0]) && self.rest.clone().take(2).eq("\\u".chars()) {
            self.rest.nth(1);
            units.push(self.hexadecimal(4)?);
        }
        let text = String::from_utf16(&units);
        let text = text.map_err(|_| Error::config(format!("\\u{:04X} is half a character", units[0])))?;
        text.chars().for_each(|character| self.out.push_str(&format!("\\u{{{:X}}}", character as u32)));
        Ok(())
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u16> {
        let text: String = self.rest.by_ref().take(digits).collect();
        let broken = || Error::config(format!("{text:?} must be {digits} hexadecimal digits"));
        if text.chars().count() != digits {
            return Err(broken());
        }
        u16::from_str_radix(&text, 16).map_err(|_| broken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        regex::Regex::new(&from_ecma_script(pattern).unwrap()).unwrap().is_match(text)
    }

    #[test]
    fn ecma_script_is_read_as_its_standard_says() {
        for (pattern, yes, no) in [
            (r"^\d$", "7", "٧"),
            (r"^\w$", "_", "é"),
            (r"^\W$", "é", "a"),
            (r"^[\w-]+$", "a-b", "a+b"),
            (r"^[^\d]$", "x", "1"),
            (r"^.$", "é", "\r"),
            (r"^[\s\S]$", "\n", "\u{2028}"),
            (r"^[^\s]$", "x", "\u{2028}"),
            (r"^[^\S]$", " ", "\u{2028}"),
            (r"^\s$", "\u{b}", "\u{85}"),
            (r"^\S$", "\u{200b}", "\u{feff}"),
            (r"^[[&&~~]+$", "[&~", "a"),
            (r"^[+--]+$", "+,-", "."),
            (r"^[a\-z]+$", "-", "b"),
            (r"^a{2}$", "aa", "a{2}"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^{}$", "{}", ""),
            (r"^\u0041\x42\u{43}$", "ABC", "abc"),
            (r"^\uD83D\uDE00$", "😀", "😁"),
            (r"^\cJ\/\.\$", "\n/.$", "\n/.x"),
            (r"^(?<year>\d{4})$", "2024", "24"),
            (r"^(?:ab)+?$", "abab", "aba"),
            (r"^[\b]$", "\u{8}", "b"),
            (r"^[^]$", "\n", ""),
            (r"^\p{Lu}$", "É", "é"),
        ] {
            let pattern = if pattern.ends_with(r"\$") { format!("{pattern}$") } else { pattern.to_owned() };
            assert!(matches(&pattern, yes), "{pattern} must match {yes:?}");
            assert!(!matches(&pattern, no), "{pattern} must not match {no:?}");
        }
    }

    #[test]
    fn what_needs_more_than_a_regular_language_is_refused() {
        for (pattern, part) in [
            (r"(a)\1", "references to groups"),
            ("a(?=b)", "looking ahead"),
            ("(?<!a)b", "looking ahead or behind"),
            (r"\bword\b", "word boundaries"),
            (r"[a", "no end"),
            (r"\uD83D", "half a character"),
            (r"\x4", "hexadecimal digits"),
            ("a\\", "ends within an escape"),
            (r"\y", r"escape \y"),
            ("(?i)a", "must go on with"),
            ("(a", "unclosed group"),
            ("(a{1000}){1000}", "1000000 characters, more than the limit"),
        ] {
            let error = from_ecma_script(pattern).unwrap_err().to_string();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }

    #[test]
    fn sizes_count_repetitions_and_do_not_overflow() {
        assert!(check(&format!("(a{{{MAX_REGEX_SIZE}}})")).is_ok());
        assert!(check(&format!("b(a{{{MAX_REGEX_SIZE}}})")).is_err());
        let error = check("((((a{4000000}){4000000}){4000000}){4000000}){4000000}").unwrap_err().to_string();
        assert!(error.contains("more than the limit"), "{error}");
        let error = check(&"(".repeat(100_000)).unwrap_err().to_string();
        assert!(!error.is_empty() && error.len() < 200, "{error}");
        assert!(check("(?P<stop>a)").unwrap_err().to_string().contains("named \"stop\""));
        assert!(check(r"a\b").is_err() && check("(?m)^a").is_err() && check("^a$").is_ok());
    }
}
