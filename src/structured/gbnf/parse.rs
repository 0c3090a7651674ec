//! GBNF's notation.

use super::super::limits::{MAX_NESTING, MAX_RULES};
use super::{Node, Rule};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::fmt::Write;

/// The rules of a grammar in their order.
///
/// # Errors
/// Mistakes, with their line and rule.
pub(super) fn parse(source: &str) -> Result<Vec<Rule>> {
    let mut parser = Parser { source, at: 0, rule: String::new(), depth: 0 };
    let mut rules = Vec::new();
    let mut names = HashSet::new();
    parser.skip_space(Lines::Cross);
    while !parser.rest().is_empty() {
        let rule = parser.rule()?;
        if !names.insert(rule.name.clone()) {
            return Err(parser.error("is there twice"));
        }
        rules.push(rule);
        if rules.len() > MAX_RULES {
            return Err(Error::config(format!("the grammar has more rules than the limit of {MAX_RULES}")));
        }
        parser.skip_space(Lines::Cross);
    }
    Ok(rules)
}

struct Parser<'a> {
    source: &'a str,
    at: usize,
    /// The rule under way.
    rule: String,
    /// Parentheses around this place.
    depth: usize,
}

/// Whether white space may go on in the next line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Stay,
    Cross,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn error(&self, what: impl std::fmt::Display) -> Error {
        let line = self.source[..self.at].matches('\n').count() + 1;
        Error::config(format!("line {line}: the rule {:?} {what}", self.rule))
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|character| !keep(character)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest().chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Blanks and comments.
    fn skip_space(&mut self, lines: Lines) {
        loop {
            self.take_while(|character| {
                " \t".contains(character) || (lines == Lines::Cross && "\r\n".contains(character))
            });
            if !self.rest().starts_with('#') {
                return;
            }
            self.take_while(|character| !"\r\n".contains(character));
        }
    }

    fn name(&mut self) -> &'a str {
        self.take_while(|character| character.is_ascii_alphanumeric() || "-_".contains(character))
    }

    fn rule(&mut self) -> Result<Rule> {
        self.rule = self.name().to_owned();
        if self.rule.is_empty() {
            let line = self.source[..self.at].matches('\n').count() + 1;
            let found: String = self.rest().chars().take(20).collect();
            return Err(Error::config(format!("line {line}: a rule must begin with its name, not with {found:?}")));
        }
        self.skip_space(Lines::Stay);
        if !self.take("::=") {
            return Err(self.error("has no \"::=\" after its name"));
        }
        self.skip_space(Lines::Cross);
        let body = self.choice()?;
        if !self.rest().is_empty() && !self.rest().starts_with(['\r', '\n']) {
            let found: String = self.rest().chars().take(20).collect();
            return Err(self.error(format!("has {found:?} where nothing can be understood")));
        }
        Ok(Rule { name: self.rule.clone(), body })
    }

    /// Alternatives, up to the end of the rule or a closing parenthesis.
    fn choice(&mut self) -> Result<Node> {
        let mut alternatives = vec![self.sequence()?];
        loop {
            // An alternative may also begin the next line.
            let before = self.at;
            self.skip_space(Lines::Cross);
            if !self.take("|") {
                if self.depth == 0 {
                    self.at = before;
                }
                break;
            }
            self.skip_space(Lines::Cross);
            alternatives.push(self.sequence()?);
        }
        Ok(if alternatives.len() == 1 { alternatives.remove(0) } else { Node::Choice(alternatives) })
    }

    fn sequence(&mut self) -> Result<Node> {
        let lines = if self.depth > 0 { Lines::Cross } else { Lines::Stay };
        let mut items: Vec<Node> = Vec::new();
        loop {
            self.skip_space(lines);
            let repeat = match self.rest().chars().next() {
                Some('*') => Some((0, None)),
                Some('+') => Some((1, None)),
                Some('?') => Some((0, Some(1))),
                Some('{') => None,
                _ => match self.item()? {
                    Some(item) => {
                        items.push(item);
                        continue;
                    }
                    None => break,
                },
            };
            self.next();
            let (least, most) = match repeat {
                Some(counts) => counts,
                None => self.counts()?,
            };
            let item = items.pop().ok_or_else(|| self.error("repeats nothing"))?;
            items.push(Node::Repeat(Box::new(item), least, most));
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Node::Sequence(items) })
    }

    /// What stands in a sequence; `None` at its end.
    fn item(&mut self) -> Result<Option<Node>> {
        let first = self.rest().chars().next();
        Ok(Some(match first {
            Some('"') => self.text()?,
            Some('[') => self.class()?,
            Some('<' | '!') => self.token()?,
            Some('.') => {
                self.next();
                Node::Class("[\\x{0}-\\x{10FFFF}]".into())
            }
            Some('(') => {
                self.next();
                self.depth += 1;
                if self.depth > MAX_NESTING {
                    return Err(self.error(format!("nests deeper than the limit of {MAX_NESTING} levels")));
                }
                self.skip_space(Lines::Cross);
                let inner = self.choice()?;
                if !self.take(")") {
                    return Err(self.error("has a parenthesis that is not closed"));
                }
                self.depth -= 1;
                inner
            }
            _ => match self.name() {
                "" => return Ok(None),
                name => Node::Rule(name.to_owned()),
            },
        }))
    }

    /// What follows an opening brace: `n}`, `n,}`, `n,m}`, `,m}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>)> {
        let inside = self.take_while(|character| character != '}');
        let broken = || format!("has the repetition {{{inside}}}, which must be {{n}}, {{n,}} or {{n,m}}");
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let counts = match inside.split_once(',') {
            None => number(inside).map(|count| (count, Some(count))),
            Some((least, "")) => number(least).map(|least| (least, None)),
            Some(("", most)) => number(most).map(|most| (0, Some(most))),
            Some((least, most)) => number(least).zip(number(most)).map(|(least, most)| (least, Some(most))),
        };
        match counts {
            Some((least, most)) if self.take("}") && most.is_none_or(|most| most >= least) => Ok((least, most)),
            _ => Err(self.error(broken())),
        }
    }

    fn text(&mut self) -> Result<Node> {
        self.next();
        let mut text = String::new();
        loop {
            if self.is_line_end() {
                return Err(self.error("has a text that is not closed"));
            }
            match self.next() {
                Some('"') => return Ok(Node::Text(text)),
                Some('\\') => text.push(self.escape()?),
                next => text.extend(next),
            }
        }
    }

    fn class(&mut self) -> Result<Node> {
        self.next();
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let mut is_empty = true;
        while !self.take("]") {
            let first = self.class_character()?;
            let mut last = first;
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.next();
                last = self.class_character()?;
            }
            if last < first {
                return Err(self.error(format!("has the range {first:?} to {last:?}, which is backwards")));
            }
            write!(class, "\\x{{{:X}}}-\\x{{{:X}}}", first as u32, last as u32).expect("writing to a string");
            is_empty = false;
        }
        if is_empty {
            return Err(self.error("has a class without characters"));
        }
        class.push(']');
        Ok(Node::Class(class))
    }

    fn class_character(&mut self) -> Result<char> {
        let next = if self.is_line_end() { None } else { self.next() };
        match next {
            Some('\\') => self.escape(),
            Some(character) => Ok(character),
            None => Err(self.error("has a class that is not closed")),
        }
    }

    fn is_line_end(&self) -> bool {
        self.rest().is_empty() || self.rest().starts_with('\n')
    }

    fn escape(&mut self) -> Result<char> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(itself @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(itself),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => return Err(self.error(format!("has the escape \\{}, which is unknown", other.unwrap_or(' ')))),
        };
        let text = self.rest().get(..digits).unwrap_or_default();
        let character = u32::from_str_radix(text, 16).ok().and_then(char::from_u32);
        let character =
            character.ok_or_else(|| self.error(format!("has an escape without {digits} digits of a character")))?;
        self.at += digits;
        Ok(character)
    }

    /// `<[1000]>`, `<name>`, `!<[1000]>`.
    fn token(&mut self) -> Result<Node> {
        let negated = self.take("!");
        if !self.take("<") {
            return Err(self.error("has a \"!\" that is not followed by a token"));
        }
        let name = self.take_while(|character| character != '>' && !character.is_whitespace());
        if !self.take(">") || name.is_empty() {
            return Err(self.error("has a token that is not closed"));
        }
        let id = name.strip_prefix('[').and_then(|id| id.strip_suffix(']')).and_then(|id| id.parse::<u32>().ok());
        match (id, negated) {
            (Some(id), false) => Ok(Node::Token(format!("<[{id}]>"))),
            (Some(id), true) => Ok(Node::Token(format!("<[^{id}]>"))),
            (None, false) => Ok(Node::Token(format!("<{name}>"))),
            (None, true) => Err(self.error(format!("excludes the token <{name}>; exclude it by its id, !<[id]>"))),
        }
    }
}
