//! A grammar as Lark: rules in small letters, which may refer to themselves, and terminals in capitals, which are regular.

use super::super::limits::MAX_REGEX_SIZE;
use super::{Node, Rule};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt::Write;

/// The rule that a text must follow.
const ROOT: &str = "root";

/// # Errors
/// Rules that are missing, and repetitions beyond the limit.
pub(super) fn write(rules: &[Rule]) -> Result<String> {
    let numbers = rules.iter().enumerate().map(|(at, rule)| (rule.name.as_str(), at)).collect();
    let mut writer = Writer { rules, numbers, sizes: vec![Size::Unknown; rules.len()], out: String::new(), runs: 0 };
    let Some(root) = writer.numbers.get(ROOT).copied() else {
        return Err(Error::config(format!("the grammar has no rule {ROOT:?}")));
    };
    for at in 0..rules.len() {
        writer.size_of_rule(at)?;
    }
    if !ending_rules(rules, &writer.numbers)[root] {
        return Err(Error::config(format!("no text can satisfy the rule {ROOT:?}, it refers to itself without end")));
    }
    let start = writer.reference(root);
    writeln!(writer.out, "start: {start}").expect("writing to a string");
    for (at, rule) in rules.iter().enumerate() {
        let body = match writer.sizes[at] {
            Size::Regular(_) => writer.terminal(&rule.body),
            _ => writer.rule(&rule.body),
        };
        let name = writer.reference(at);
        writeln!(writer.out, "{name}: {body}").expect("writing to a string");
    }
    Ok(writer.out)
}

/// What is known of a rule.
#[derive(Clone, Copy)]
enum Size {
    Unknown,
    UnderWay,
    /// It does not lead back to itself and has so many characters with its repetitions written out.
    Regular(u64),
    Recursive,
}

struct Writer<'a> {
    rules: &'a [Rule],
    numbers: HashMap<&'a str, usize>,
    sizes: Vec<Size>,
    out: String,
    /// Terminals without a rule of their own so far.
    runs: usize,
}

impl<'a> Writer<'a> {
    /// Recursion is bounded by the number of rules, and the stack is made for it.
    fn size_of_rule(&mut self, at: usize) -> Result<Option<u64>> {
        match self.sizes[at] {
            Size::Regular(size) => return Ok(Some(size)),
            Size::Recursive => return Ok(None),
            Size::UnderWay => {
                self.sizes[at] = Size::Recursive;
                return Ok(None);
            }
            Size::Unknown => self.sizes[at] = Size::UnderWay,
        }
        let Rule { name, body } = &self.rules[at];
        let size = self.size(body, name)?;
        if size.is_some_and(|size| size > MAX_REGEX_SIZE) {
            return Err(Error::config(format!(
                "the rule {name:?} has more characters than the limit of {MAX_REGEX_SIZE}, with its repetitions written out"
            )));
        }
        self.sizes[at] = match (size, self.sizes[at]) {
            (Some(size), Size::UnderWay) => Size::Regular(size),
            _ => Size::Recursive,
        };
        Ok(size)
    }

    /// The size of a node if it is regular.
    fn size(&mut self, node: &'a Node, rule: &str) -> Result<Option<u64>> {
        Ok(match node {
            Node::Text(text) => Some(text.len() as u64),
            Node::Class(_) => Some(1),
            Node::Token(_) => None,
            Node::Rule(name) => match self.numbers.get(name.as_str()) {
                Some(at) => self.size_of_rule(*at)?,
                None => return Err(Error::config(format!("the rule {rule:?} names {name:?}, which is not there"))),
            },
            Node::Sequence(items) | Node::Choice(items) => {
                let mut sum = Some(0u64);
                for item in items {
                    sum = self.size(item, rule)?.zip(sum).map(|(size, sum)| size.saturating_add(sum));
                }
                sum
            }
            Node::Repeat(item, least, most) => {
                let count = most.unwrap_or(least.saturating_add(1));
                if u64::from(count) > MAX_REGEX_SIZE {
                    return Err(Error::config(format!(
                        "the rule {rule:?} repeats {count} times, more than the limit of {MAX_REGEX_SIZE}"
                    )));
                }
                self.size(item, rule)?.map(|size| size.saturating_mul(u64::from(count)))
            }
        })
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Text(_) | Node::Class(_) => true,
            Node::Token(_) => false,
            Node::Rule(name) => matches!(self.sizes[self.numbers[name.as_str()]], Size::Regular(_)),
            Node::Sequence(items) | Node::Choice(items) => items.iter().all(|item| self.is_regular(item)),
            Node::Repeat(item, ..) => self.is_regular(item),
        }
    }

    /// The name of a rule in Lark.
    fn reference(&self, at: usize) -> String {
        let name = self.rules[at].name.replace('-', "_");
        match self.sizes[at] {
            Size::Regular(_) => format!("T{at}_{}", name.to_ascii_uppercase()),
            _ => format!("r{at}_{}", name.to_ascii_lowercase()),
        }
    }

    /// A regular node, as what stands in a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Text(text) => quoted(text),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(name) => self.reference(self.numbers[name.as_str()]),
            Node::Sequence(items) if items.is_empty() => quoted(""),
            Node::Sequence(items) => items.iter().map(|item| self.terminal(item)).collect::<Vec<_>>().join(" "),
            Node::Choice(items) => self.terminal_choice(items.iter()),
            Node::Repeat(item, least, most) => repeated(&self.terminal(item), *least, *most),
            Node::Token(_) => unreachable!("a token is not regular"),
        }
    }

    fn terminal_choice<'n>(&self, items: impl Iterator<Item = &'n Node>) -> String {
        format!("({})", items.map(|item| self.terminal(item)).collect::<Vec<_>>().join(" | "))
    }

    /// A terminal of its own with `body`.
    fn named_terminal(&mut self, body: &str) -> String {
        self.runs += 1;
        let name = format!("RUN{}", self.runs);
        writeln!(self.out, "{name}: {body}").expect("writing to a string");
        name
    }

    /// A node that is not regular, as what stands in a rule.
    fn rule(&mut self, node: &'a Node) -> String {
        match node {
            Node::Token(token) => token.clone(),
            Node::Rule(name) => self.reference(self.numbers[name.as_str()]),
            Node::Sequence(items) => {
                let mut parts = Vec::new();
                let mut rest = items.as_slice();
                while let Some((first, tail)) = rest.split_first() {
                    let run = rest.iter().take_while(|item| self.is_regular(item)).count();
                    if run == 0 {
                        parts.push(self.rule(first));
                        rest = tail;
                        continue;
                    }
                    let texts: Vec<_> = rest[..run].iter().map(|item| self.terminal(item)).collect();
                    parts.push(self.named_terminal(&texts.join(" ")));
                    rest = &rest[run..];
                }
                parts.join(" ")
            }
            Node::Choice(items) => {
                let (regular, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| self.is_regular(item));
                let mut alternatives = Vec::new();
                if !regular.is_empty() {
                    let body = self.terminal_choice(regular.into_iter());
                    alternatives.push(self.named_terminal(&body));
                }
                for item in others {
                    alternatives.push(self.rule(item));
                }
                format!("({})", alternatives.join(" | "))
            }
            Node::Repeat(item, least, most) => repeated(&self.rule(item), *least, *most),
            Node::Text(_) | Node::Class(_) => unreachable!("texts and classes are regular"),
        }
    }
}

/// Which rules some text satisfies: those that end by themselves, then those that end because these do, and so on.
fn ending_rules(rules: &[Rule], numbers: &HashMap<&str, usize>) -> Vec<bool> {
    fn has_end(node: &Node, numbers: &HashMap<&str, usize>, ending: &[bool]) -> bool {
        match node {
            Node::Text(_) | Node::Class(_) | Node::Token(_) | Node::Repeat(_, 0, _) => true,
            Node::Rule(name) => numbers.get(name.as_str()).is_some_and(|at| ending[*at]),
            Node::Sequence(items) => items.iter().all(|item| has_end(item, numbers, ending)),
            Node::Choice(items) => items.iter().any(|item| has_end(item, numbers, ending)),
            Node::Repeat(item, ..) => has_end(item, numbers, ending),
        }
    }
    let mut ending = vec![false; rules.len()];
    loop {
        let before = ending.clone();
        // Most rules name those that follow them.
        for (at, rule) in rules.iter().enumerate().rev() {
            ending[at] = ending[at] || has_end(&rule.body, numbers, &ending);
        }
        if ending == before {
            return ending;
        }
    }
}

fn repeated(item: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => format!("({item})*"),
        (1, None) => format!("({item})+"),
        (0, Some(1)) => format!("({item})?"),
        (_, None) => format!("({item}){{{least},}}"),
        (_, Some(0)) => quoted(""),
        (_, Some(most)) => format!("({item}){{{least},{most}}}"),
    }
}

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => {
                // Control characters end at U+009F.
                write!(out, "\\u{:04X}", character as u32).expect("writing to a string");
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
