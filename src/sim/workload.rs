//! Requests to try things with: seeded prompts and lengths, arrival processes, and arrival traces read from JSON lines.
//!
//! Token ids are random and mean nothing, as in nano-vllm's benchmark: what a request costs depends on its lengths.

use super::Random;
use crate::base::{RequestId, TokenId};
use crate::error::{Error, Result};
use crate::sampling::{SamplingParams, SamplingRow};
use crate::sched::NewSequence;
use std::io::BufRead;
use std::str::FromStr;

/// How a length is drawn. Parsed from `128`, `100..1024` (both ends included) or `lognormal:MEDIAN,SIGMA,MOST`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always the same.
    Fixed(usize),
    /// Each from `low` to `high` equally likely.
    Uniform {
        /// Shortest.
        low: usize,
        /// Longest.
        high: usize,
    },
    /// Many short ones and a long tail, as in chat traffic; cut to `1..=most`.
    LogNormal {
        /// Half are shorter.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Longest.
        most: usize,
    },
}

impl Lengths {
    /// One length, at least 1.
    pub fn draw(&self, random: &mut Random) -> usize {
        match *self {
            Self::Fixed(length) => length,
            Self::Uniform { low, high } => random.between(low, high),
            Self::LogNormal { median, sigma, most } => {
                ((median * (sigma * random.normal()).exp()).round() as usize).min(most)
            }
        }
        .max(1)
    }

    /// The longest that can come.
    pub fn most(&self) -> usize {
        match *self {
            Self::Fixed(length) => length,
            Self::Uniform { high, .. } => high,
            Self::LogNormal { most, .. } => most,
        }
        .max(1)
    }
}

impl FromStr for Lengths {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            Error::config(format!(
                "length `{text}` is not understood; write 128, or 100..1024, or lognormal:MEDIAN,SIGMA,MOST, all above 0"
            ))
        };
        let count = |text: &str| text.parse::<usize>().ok().filter(|count| *count > 0).ok_or_else(refuse);
        if let Some(rest) = text.strip_prefix("lognormal:") {
            let real = |text: &str| text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(refuse);
            let parts: Vec<&str> = rest.split(',').collect();
            let [median, sigma, most] = parts.as_slice() else { return Err(refuse()) };
            return Ok(Self::LogNormal { median: real(median)?, sigma: real(sigma)?, most: count(most)? });
        }
        match text.split_once("..") {
            None => Ok(Self::Fixed(count(text)?)),
            Some((low, high)) => match (count(low)?, count(high)?) {
                (low, high) if low <= high => Ok(Self::Uniform { low, high }),
                _ => Err(refuse()),
            },
        }
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at the start.
    AtOnce,
    /// With equal gaps, the first at 0.
    Every {
        /// The gap.
        micros: u64,
    },
    /// Independent of each other: a Poisson process.
    Poisson {
        /// Requests a second on average.
        per_second: f64,
    },
}

/// A recipe for requests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many.
    pub requests: usize,
    /// Prompt tokens of its own that each has.
    pub input: Lengths,
    /// Tokens to generate.
    pub output: Lengths,
    /// When they come.
    pub arrivals: Arrivals,
    /// Tokens that all prompts begin with.
    pub shared_prefix: usize,
    /// Token ids are below this.
    pub id_limit: u32,
    /// Sampling of all of them; each gets a seed of its own.
    pub params: SamplingParams,
    /// Decides everything that is random.
    pub seed: u64,
}

impl Workload {
    /// The requests, by arrival.
    pub fn sequences(&self) -> Vec<NewSequence> {
        let mut random = Random::stream(self.seed, 0);
        let shared = tokens(&mut random, self.shared_prefix, self.id_limit);
        let mut clock = 0.0;
        let mut sequence = |index: usize| {
            let own = self.input.draw(&mut random);
            let mut prompt = shared.clone();
            prompt.extend(tokens(&mut random, own, self.id_limit));
            let max_tokens = self.output.draw(&mut random) as u32;
            let mut new = build(index, prompt, max_tokens, &self.params, random.word());
            new.arrival_micros = match self.arrivals {
                Arrivals::AtOnce => 0,
                Arrivals::Every { micros } => index as u64 * micros,
                Arrivals::Poisson { per_second } => {
                    clock += random.exponential(1e6 / per_second);
                    clock as u64
                }
            };
            new
        };
        (0..self.requests).map(&mut sequence).collect()
    }
}

fn tokens(random: &mut Random, count: usize, id_limit: u32) -> Vec<TokenId> {
    (0..count).map(|_| random.below(id_limit as usize) as TokenId).collect()
}

fn build(index: usize, prompt: Vec<TokenId>, max_tokens: u32, params: &SamplingParams, seed: u64) -> NewSequence {
    let stops = &params.stop_token_ids;
    let sampling = SamplingRow::new(params, seed, stops);
    NewSequence {
        stop_tokens: stops.clone(),
        ..NewSequence::new(RequestId(index as u64), prompt, max_tokens, sampling)
    }
}

/// One line of a trace: the fields of Mooncake's published traces (timestamp, lengths, hash_ids), and two of ours.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceLine {
    /// Arrival in milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: u32,
    /// Name of each 512-token piece of the prompt; equal names are equal tokens.
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    priority: i32,
    /// Milliseconds on the clock of `timestamp`.
    deadline: Option<f64>,
}

/// Prompt tokens that one `hash_ids` entry stands for.
const TRACE_PIECE: usize = 512;

/// Reads requests from JSON lines:
/// `{"timestamp": MILLISECONDS, "input_length": TOKENS, "output_length": TOKENS}`, and optionally `"hash_ids"` (names of
/// 512-token pieces of the prompt, for shared prefixes), `"priority"` and `"deadline"` (milliseconds). Empty lines are
/// skipped. Sorted by arrival.
///
/// # Errors
/// Names the line and what is wrong with it.
pub fn read_trace(lines: impl BufRead, id_limit: u32, params: &SamplingParams, seed: u64) -> Result<Vec<NewSequence>> {
    let mut sequences = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let refuse = |what: &dyn std::fmt::Display| Error::config(format!("line {number} of the trace: {what}"));
        let line = line.map_err(|error| refuse(&error))?;
        if line.trim().is_empty() {
            continue;
        }
        let TraceLine { timestamp, input_length, output_length, hash_ids, priority, deadline } =
            serde_json::from_str(&line).map_err(|error| refuse(&error))?;
        let millis = |name: &str, value: f64| match (0.0..1e15).contains(&value) {
            true => Ok((value * 1e3) as u64),
            false => Err(refuse(&format!("{name} is {value}, but must be milliseconds from 0 on"))),
        };
        if input_length == 0 || output_length == 0 {
            return Err(refuse(&format!(
                "input_length is {input_length} and output_length {output_length}, but both must be at least 1"
            )));
        }
        let mut prompt = Vec::with_capacity(input_length);
        for name in hash_ids {
            // Equal names must be equal tokens everywhere in the trace, so the name alone decides them.
            let piece = TRACE_PIECE.min(input_length - prompt.len());
            prompt.extend(tokens(&mut Random::stream(seed, name), piece, id_limit));
        }
        let index = sequences.len();
        let mut random = Random::stream(!seed, index as u64);
        let own = input_length - prompt.len();
        prompt.extend(tokens(&mut random, own, id_limit));
        sequences.push(NewSequence {
            arrival_micros: millis("timestamp", timestamp)?,
            priority,
            deadline_micros: deadline.map(|deadline| millis("deadline", deadline)).transpose()?,
            ..build(index, prompt, output_length, params, random.word())
        });
    }
    sequences.sort_by_key(|new| new.arrival_micros);
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_and_drawn_within_their_bounds() {
        let read = |text: &str| text.parse::<Lengths>().unwrap();
        assert_eq!(read("128"), Lengths::Fixed(128));
        assert_eq!(read("100..1024"), Lengths::Uniform { low: 100, high: 1024 });
        let long_tail = read("lognormal:200,1.0,900");
        assert_eq!(long_tail, Lengths::LogNormal { median: 200.0, sigma: 1.0, most: 900 });
        let mut random = Random::new(3);
        let mut drawn: Vec<usize> = (0..4001).map(|_| long_tail.draw(&mut random)).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= 1 && drawn[4000] == 900 && (180..220).contains(&drawn[2000]), "median {}", drawn[2000]);
        for wrong in ["", "0", "5..3", "0..4", "-1", "1..", "lognormal:1,2", "lognormal:NaN,1,5", "many"] {
            let error = wrong.parse::<Lengths>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }

    fn workload(arrivals: Arrivals) -> Workload {
        Workload {
            requests: 2000,
            input: Lengths::Uniform { low: 2, high: 9 },
            output: Lengths::Fixed(4),
            arrivals,
            shared_prefix: 5,
            id_limit: 100,
            params: SamplingParams { temperature: 0.6, ..Default::default() },
            seed: 42,
        }
    }

    #[test]
    fn a_seed_decides_everything_and_prefixes_are_shared() {
        let (one, two) = (workload(Arrivals::AtOnce).sequences(), workload(Arrivals::AtOnce).sequences());
        assert!(one.iter().zip(&two).all(|(a, b)| a.prompt == b.prompt && a.sampling == b.sampling));
        assert!(one.iter().all(|new| new.prompt[..5] == one[0].prompt[..5] && (7..=14).contains(&new.prompt.len())));
        assert!(one.iter().flat_map(|new| &new.prompt).all(|token| *token < 100));
        let other = Workload { seed: 43, ..workload(Arrivals::AtOnce) }.sequences();
        assert_ne!(one[0].prompt, other[0].prompt);
        assert_ne!(one[0].sampling.seed_low, one[1].sampling.seed_low, "each request has draws of its own");
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_even_ones_their_gap() {
        let poisson = workload(Arrivals::Poisson { per_second: 50.0 }).sequences();
        assert!(poisson.is_sorted_by_key(|new| new.arrival_micros));
        // 2000 gaps of 20 ms: 40 s, within five standard errors (2.2 % each).
        let span = poisson[1999].arrival_micros as f64 / 1e6;
        assert!((span - 40.0).abs() < 5.0 * 0.022 * 40.0, "{span} s");
        let even = workload(Arrivals::Every { micros: 250 }).sequences();
        assert!(even.iter().zip(0..).all(|(new, index)| new.arrival_micros == index * 250));
    }

    #[test]
    fn a_trace_is_read_sorted_and_its_faults_are_named() {
        let params = SamplingParams::default();
        let text = "{\"timestamp\": 20, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 8]}\n\n\
                    {\"timestamp\": 1.5, \"input_length\": 520, \"output_length\": 6, \"hash_ids\": [7], \"priority\": -2, \
                    \"deadline\": 90}\n";
        let read = read_trace(text.as_bytes(), 1000, &params, 1).unwrap();
        assert_eq!(read.iter().map(|new| new.arrival_micros).collect::<Vec<_>>(), [1500, 20_000]);
        assert_eq!(read.iter().map(|new| new.prompt.len()).collect::<Vec<_>>(), [520, 600]);
        assert_eq!(read[0].prompt[..512], read[1].prompt[..512]);
        assert_ne!(read[0].prompt[512..520], read[1].prompt[512..520]);
        assert_eq!((read[0].priority, read[0].deadline_micros), (-2, Some(90_000)));
        let faults = [
            ("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", "timestamp is -1"),
            ("{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}", "input_length is 0"),
            ("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"priorty\": 1}", "priorty"),
            ("nonsense", "expected"),
        ];
        for (line, what) in faults {
            let error = read_trace(format!("\n{line}\n").as_bytes(), 10, &params, 1).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of the trace") && error.contains(what), "{error}");
        }
    }
}
