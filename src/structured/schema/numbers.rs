//! Numbers: their range and step, always with an end. The library writes a number without bounds with as many digits as
//! the model likes, and more than a double holds; so every number lies within what doubles count exactly and has at most
//! eight digits after its point.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// The largest integer that JSON's readers agree on (RFC 8259, section 6).
pub(super) const LARGEST: f64 = 9_007_199_254_740_991.0;

/// Digits after the point. The library's arithmetic takes no more.
const MOST_DECIMALS: u32 = 8;

/// Integer formats that generators write, with their ranges.
const INTEGER_FORMATS: [(&str, f64, f64); 12] = [
    ("int8", -128.0, 127.0),
    ("int16", -32_768.0, 32_767.0),
    ("int32", -2_147_483_648.0, 2_147_483_647.0),
    ("int64", -LARGEST, LARGEST),
    ("int128", -LARGEST, LARGEST),
    ("int", -LARGEST, LARGEST),
    ("uint8", 0.0, 255.0),
    ("uint16", 0.0, 65_535.0),
    ("uint32", 0.0, 4_294_967_295.0),
    ("uint64", 0.0, LARGEST),
    ("uint128", 0.0, LARGEST),
    ("uint", 0.0, LARGEST),
];

/// What else a schema has that bears on its numbers.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Whether numbers with a fraction may come.
    pub(super) fractions: bool,
    /// Steps that may meet each other where schemas are put together.
    pub(super) meeting_steps: &'a [f64],
}

/// Whether `format` says something of numbers.
pub(super) fn is_format(format: &str) -> bool {
    matches!(format, "float" | "double") || INTEGER_FORMATS.iter().any(|(name, ..)| *name == format)
}

/// The keywords of numbers in `schema`, complete.
///
/// # Errors
/// Values that the keywords cannot have, and bounds and steps beyond what is exact.
pub(super) fn keywords(schema: &Map<String, Value>, setting: Setting<'_>, place: &str) -> Result<Map<String, Value>> {
    let mut range = Range { least: -LARGEST, most: LARGEST, above: false, below: false };
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && let Some((_, least, most)) = INTEGER_FORMATS.iter().find(|(name, ..)| *name == format)
    {
        range.at_least(*least, false);
        range.at_most(*most, false);
    }
    let (minimum, maximum) = (number(schema, "minimum", place)?, number(schema, "maximum", place)?);
    if let Some(minimum) = minimum {
        range.at_least(minimum, false);
    }
    if let Some(maximum) = maximum {
        range.at_most(maximum, false);
    }
    // Up to draft 4, these were flags of the other two.
    match schema.get("exclusiveMinimum") {
        Some(Value::Bool(flag)) => range.above |= *flag && minimum == Some(range.least),
        _ => number(schema, "exclusiveMinimum", place)?.into_iter().for_each(|bound| range.at_least(bound, true)),
    }
    match schema.get("exclusiveMaximum") {
        Some(Value::Bool(flag)) => range.below |= *flag && maximum == Some(range.most),
        _ => number(schema, "exclusiveMaximum", place)?.into_iter().for_each(|bound| range.at_most(bound, true)),
    }
    if range.least > LARGEST || range.most < -LARGEST {
        return Err(Error::config(format!(
            "{place}: numbers from {} to {} are beyond {LARGEST}, where not all integers can be told apart",
            range.least, range.most
        )));
    }
    let step = step(schema, setting.meeting_steps, place)?;
    if setting.fractions && step.is_none() {
        range.close_narrow_ends();
    }
    let mut keywords = range.keywords();
    match step {
        Some(step) => drop(keywords.insert("multipleOf".into(), step)),
        // A step bounds the digits. Near the smallest step, the library's comparison of range and step is not exact.
        None if setting.fractions && setting.meeting_steps.is_empty() && range.most - range.least > 1e-4 => {
            keywords.insert("multipleOf".into(), json!(1e-8));
        }
        None => {}
    }
    Ok(keywords)
}

/// A schema that keeps integers within `keywords` from being written as `-0`, which readers take for a fraction: those
/// below 0 are one case, those from 0 on another. `types` has `integer` and not `number`.
pub(super) fn without_minus_zero(keywords: &Map<String, Value>, types: &[&str]) -> Option<Value> {
    let bound = |inclusive: &str, exclusive: &str| {
        keywords.get(inclusive).or_else(|| keywords.get(exclusive)).and_then(Value::as_f64)
    };
    let least = bound("minimum", "exclusiveMinimum")?;
    let most = bound("maximum", "exclusiveMaximum")?;
    if least >= 0.0 || most < 0.0 {
        return None;
    }
    let mut cases = vec![json!({"type": "integer", "maximum": -1}), json!({"type": "integer", "minimum": 0})];
    let others: Vec<_> = types.iter().filter(|name| **name != "integer").collect();
    if !others.is_empty() {
        cases.push(json!({"type": others}));
    }
    Some(json!({"anyOf": cases}))
}

struct Range {
    least: f64,
    most: f64,
    /// Whether `least` itself is out, and `most`.
    above: bool,
    below: bool,
}

impl Range {
    fn at_least(&mut self, bound: f64, exclusive: bool) {
        if bound > self.least || (bound == self.least && exclusive) {
            (self.least, self.above) = (bound, exclusive);
        }
    }

    fn at_most(&mut self, bound: f64, exclusive: bool) {
        if bound < self.most || (bound == self.most && exclusive) {
            (self.most, self.below) = (bound, exclusive);
        }
    }

    /// llguidance 1.9 takes 0 for a number above 0 and below 1: it loses an exclusive integer bound if the other bound
    /// has the same integer part. The next number that can be written takes its place.
    fn close_narrow_ends(&mut self) {
        if self.above && self.least.fract() == 0.0 && self.most > self.least && self.most < self.least + 1.0 {
            (self.least, self.above) = (rounded(self.least + 1e-8), false);
        }
        if self.below && self.most.fract() == 0.0 && self.least < self.most && self.least > self.most - 1.0 {
            (self.most, self.below) = (rounded(self.most - 1e-8), false);
        }
    }

    fn keywords(&self) -> Map<String, Value> {
        let least = if self.above { "exclusiveMinimum" } else { "minimum" };
        let most = if self.below { "exclusiveMaximum" } else { "maximum" };
        Map::from_iter([(least.to_owned(), json!(self.least)), (most.to_owned(), json!(self.most))])
    }
}

/// The double nearest to `value` with [`MOST_DECIMALS`] decimals.
fn rounded(value: f64) -> f64 {
    format!("{value:.*}", MOST_DECIMALS as usize).parse().expect("a formatted double is a double")
}

fn number(schema: &Map<String, Value>, keyword: &str, place: &str) -> Result<Option<f64>> {
    let Some(value) = schema.get(keyword) else {
        return Ok(None);
    };
    match value.as_f64() {
        Some(number) => Ok(Some(number)),
        None => Err(Error::config(format!("{place}: {keyword} is {value}, but must be a number"))),
    }
}

/// `multipleOf`, if the library's arithmetic in 32 bits is exact for it.
fn step(schema: &Map<String, Value>, meeting: &[f64], place: &str) -> Result<Option<Value>> {
    let Some(step) = number(schema, "multipleOf", place)? else {
        return Ok(None);
    };
    if step <= 0.0 {
        return Err(Error::config(format!("{place}: multipleOf is {step}, but must be above 0")));
    }
    let Some((factor, decimals)) = exact_step(step) else {
        return Err(Error::config(format!(
            "{place}: multipleOf {step} is not supported; use up to {MOST_DECIMALS} digits, integers or powers of ten"
        )));
    };
    // The library multiplies steps that meet, in 32 bits. All of the schema together is a safe bound.
    let together = meeting.iter().filter(|other| **other != step).try_fold(factor, |product, other| {
        let (factor, other_decimals) = exact_step(*other)?;
        let scale = 10u64.checked_pow(decimals.abs_diff(other_decimals))?;
        product.checked_mul(factor)?.checked_mul(scale)
    });
    if together.is_none_or(|product| !fits(product, MOST_DECIMALS)) && meeting.len() > 1 {
        return Err(Error::config(format!(
            "{place}: multipleOf {step} is not supported together with the other steps of a schema that has allOf or the \
             like; take smaller steps, or only one"
        )));
    }
    Ok(Some(json!(step)))
}

/// A step as an integer and a number of decimals, if the library's arithmetic is exact for it.
fn exact_step(step: f64) -> Option<(u64, u32)> {
    let digits = step.to_string();
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len() as u32);
    let factor = digits.replace('.', "").parse::<u64>().ok()?;
    let exact =
        decimals <= MOST_DECIMALS && fits(factor, decimals) && library_decimal(step) == (factor as f64, decimals);
    exact.then_some((factor, decimals))
}

/// Whether the library can tell multiples by remainders of 32 bits.
fn fits(factor: u64, decimals: u32) -> bool {
    factor.checked_mul(10).is_some_and(|ten| ten + 9 * 10u64.pow(decimals) <= u64::from(u32::MAX))
}

/// How llguidance takes a step apart, so that we see where doubles lead it astray (0.07, for one).
fn library_decimal(mut value: f64) -> (f64, u32) {
    let mut decimals = 0;
    while value.fract() != 0.0 {
        value *= 10.0;
        decimals += 1;
    }
    (value, decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Result<Value> {
        let setting = Setting { fractions: true, meeting_steps: &[] };
        keywords(schema.as_object().unwrap(), setting, "#").map(Value::Object)
    }

    #[test]
    fn every_number_has_two_ends_and_a_step() {
        let all = json!({"minimum": -LARGEST, "maximum": LARGEST, "multipleOf": 1e-8});
        assert_eq!(of(json!({})).unwrap(), all);
        assert_eq!(of(json!({"minimum": -1e300, "maximum": 1e300})).unwrap(), all);
        assert_eq!(
            of(json!({"minimum": 2, "exclusiveMinimum": 2, "maximum": 9, "exclusiveMaximum": 10})).unwrap(),
            json!({"exclusiveMinimum": 2.0, "maximum": 9.0, "multipleOf": 1e-8})
        );
        assert_eq!(
            of(json!({"minimum": 2, "exclusiveMinimum": true, "maximum": 3, "multipleOf": 0.25})).unwrap(),
            json!({"exclusiveMinimum": 2.0, "maximum": 3.0, "multipleOf": 0.25})
        );
        assert_eq!(
            of(json!({"format": "uint8", "maximum": 300})).unwrap(),
            json!({"minimum": 0.0, "maximum": 255.0, "multipleOf": 1e-8})
        );
    }

    #[test]
    fn an_exclusive_integer_next_to_its_fraction_becomes_inclusive() {
        let range = of(json!({"exclusiveMinimum": 0, "maximum": 0.5})).unwrap();
        assert_eq!(range, json!({"minimum": 1e-8, "maximum": 0.5, "multipleOf": 1e-8}));
        let range = of(json!({"minimum": -0.5, "exclusiveMaximum": 0})).unwrap();
        assert_eq!(range, json!({"minimum": -0.5, "maximum": -1e-8, "multipleOf": 1e-8}));
    }

    #[test]
    fn what_would_not_be_exact_is_refused() {
        for (schema, part) in [
            (json!({"minimum": 1e16}), "are beyond"),
            (json!({"maximum": "1"}), "maximum is \"1\", but must be a number"),
            (json!({"multipleOf": 0}), "must be above 0"),
            (json!({"multipleOf": 0.07}), "multipleOf 0.07 is not supported"),
            (json!({"multipleOf": 1e-9}), "is not supported"),
            (json!({"multipleOf": 500_000_000}), "is not supported"),
        ] {
            let error = of(schema).unwrap_err().to_string();
            assert!(error.starts_with("#: ") && error.contains(part), "{error}");
        }
        let meeting = Setting { fractions: false, meeting_steps: &[65_537.0, 65_539.0] };
        let error = keywords(json!({"multipleOf": 65_537}).as_object().unwrap(), meeting, "#").unwrap_err();
        assert!(error.to_string().contains("together with the other steps"), "{error}");
        for step in [1.0, 0.01, 0.25, 2.5, 1e-8, 300_000_000.0] {
            of(json!({"multipleOf": step})).unwrap();
        }
    }
}
