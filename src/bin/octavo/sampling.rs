//! The options about sampling, and what they become in the library.

use crate::constraints::ConstraintArgs;
use clap::Args;
use octavo::base::TokenId;
use octavo::error::Result;
use octavo::sampling::{RepetitionDetection, SamplingParams, TopLogprobs};

/// How tokens are chosen and when to stop.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Most tokens to generate for each prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_tokens: u32,
    /// 0 always takes the likeliest token; 0.7 to 1 is usual for varied text [default: as the model suggests, else 0]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 and -1 are off [default: as the model suggests, else 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    pub top_k: Option<u32>,
    /// Choose among the likeliest tokens that hold this share of the probability; 1 is off [default: as the model suggests,
    /// else 1]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest; 0 is off [default: as the model suggests, else 0]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Outputs for each prompt; above 1 needs a temperature above 0
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub n: u32,
    /// Repeat the same draws; left out, each prompt gets a seed of its own
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Divide the logits of tokens that the prompt or the output holds by this, and multiply negative ones; 1 is off
    /// [default: as the model suggests, else 1]
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f32>,
    /// Take this off the logits of tokens that the output holds, -2 to 2
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Take this off for each time that the output holds them, -2 to 2
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Add to the logits of these tokens, -100 to 100
    #[arg(long, value_name = "ID=BIAS,..", value_delimiter = ',', value_parser = bias)]
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Sample no other tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Text that the output must not contain, as tokens with and without a space before; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub bad_words: Vec<String>,
    /// Keep only so many of the prompt's last tokens
    #[arg(long, value_name = "N")]
    pub truncate_prompt_tokens: Option<u32>,
    #[command(flatten)]
    pub ends: EndArgs,
    #[command(flatten)]
    pub reports: ReportArgs,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
}

/// When an output ends.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Ends of outputs")]
pub struct EndArgs {
    /// Go on after the model's end token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Do not end by a token, a text or a repetition before the output has so many tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_tokens: u32,
    /// Text that ends the output and is not part of it; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Token ids that end the output
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub stop_token_ids: Vec<TokenId>,
    /// Keep the stop at the end of the output
    #[arg(long, alias = "include-stop-str-in-output")]
    pub include_stop_str: bool,
    /// End an output whose last MIN to MAX tokens stand there COUNT times
    #[arg(long, value_name = "MAX,MIN,COUNT", value_parser = detection)]
    pub repetition_detection: Option<RepetitionDetection>,
}

/// What is reported besides the text.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tokens and their probabilities")]
pub struct ReportArgs {
    /// Show how likely each token was by the model itself, and the N likeliest ones at its place
    #[arg(long, value_name = "N|all", allow_negative_numbers = true, value_parser = top)]
    pub logprobs: Option<TopLogprobs>,
    /// The same for each token of the prompt but the first
    #[arg(long, value_name = "N|all", allow_negative_numbers = true, value_parser = top)]
    pub prompt_logprobs: Option<TopLogprobs>,
    /// Leave special tokens in the text
    #[arg(long)]
    pub no_skip_special_tokens: bool,
    /// Make no text of the tokens
    #[arg(long)]
    pub no_detokenize: bool,
}

impl SamplingArgs {
    /// Refuses what is wrong by itself, before anything is opened.
    pub fn check(&self) -> Result<()> {
        // Whether several outputs may differ depends on the model, so the temperature is left open.
        self.params(&SamplingParams::sampled(1.0)).map(drop)
    }

    /// The checked parameters; what was not given is as in `suggested`.
    pub fn params(&self, suggested: &SamplingParams) -> Result<SamplingParams> {
        let (ends, reports) = (&self.ends, &self.reports);
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(suggested.temperature),
            top_k: self.top_k.unwrap_or(suggested.top_k),
            top_p: self.top_p.unwrap_or(suggested.top_p),
            min_p: self.min_p.unwrap_or(suggested.min_p),
            n: self.n,
            seed: self.seed,
            max_tokens: Some(self.max_tokens),
            stop: ends.stop.clone(),
            stop_token_ids: ends.stop_token_ids.clone(),
            ignore_eos: ends.ignore_eos,
            repetition_penalty: self.repetition_penalty.unwrap_or(suggested.repetition_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().copied().collect(),
            allowed_token_ids: self.allowed_token_ids.clone(),
            bad_words: self.bad_words.clone(),
            min_tokens: ends.min_tokens,
            include_stop_str_in_output: ends.include_stop_str,
            logprobs: reports.logprobs,
            prompt_logprobs: reports.prompt_logprobs,
            detokenize: !reports.no_detokenize,
            skip_special_tokens: !reports.no_skip_special_tokens,
            truncate_prompt_tokens: self.truncate_prompt_tokens,
            repetition_detection: ends.repetition_detection,
            constraint: self.constraint.constraint(),
            whitespace: self.constraint.whitespace,
        };
        params.validate()?;
        Ok(params)
    }
}

fn top_k(text: &str) -> std::result::Result<u32, String> {
    match text {
        "-1" => Ok(0),
        _ => text.parse().map_err(|_| "a whole number from 0, or -1 for all".into()),
    }
}

/// A number of likeliest tokens, or all of them.
pub fn top(text: &str) -> std::result::Result<TopLogprobs, String> {
    match text {
        "all" | "-1" => Ok(TopLogprobs::All),
        _ => text.parse().map(TopLogprobs::Most).map_err(|_| "a whole number from 0, or `all`".into()),
    }
}

fn bias(text: &str) -> std::result::Result<(TokenId, f32), String> {
    let wrong = || format!("`{text}` is not a token id and a number with `=` between them");
    let (token, bias) = text.split_once('=').ok_or_else(wrong)?;
    let token = token.trim().parse().map_err(|_| wrong())?;
    Ok((token, bias.trim().parse().map_err(|_| wrong())?))
}

fn detection(text: &str) -> std::result::Result<RepetitionDetection, String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[max_pattern_size, min_pattern_size, min_count]) => {
            Ok(RepetitionDetection { max_pattern_size, min_pattern_size, min_count })
        }
        _ => Err("three numbers: the longest and the shortest run of tokens, and how often it must stand there".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use octavo::sampling::{Constraint, Whitespace};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn params(options: &str) -> SamplingParams {
        let words = std::iter::once("octavo").chain(options.split(' ').filter(|word| !word.is_empty()));
        let cli = Cli::try_parse_from(words).unwrap();
        cli.sampling.params(&SamplingParams::sampled(0.6).repetition_penalty(1.1)).unwrap()
    }

    #[test]
    fn options_become_the_parameters_of_their_names() {
        let expected = SamplingParams::sampled(0.6).repetition_penalty(1.1).max_tokens(256);
        assert_eq!(params(""), expected);
        let found = params(
            "--max-tokens 9 --temperature 0.5 --top-k -1 --top-p 0.9 --min-p 0.1 -n 2 --seed 3 --repetition-penalty 1.3 \
             --presence-penalty -0.5 --frequency-penalty 0.25 --logit-bias 7=-3,8=2.5 --allowed-token-ids 1,2 \
             --bad-words never --bad-words ever --truncate-prompt-tokens 5 --ignore-eos --min-tokens 4 --stop END \
             --stop-token-ids 3 --include-stop-str --repetition-detection 9,2,3 --logprobs 2 --prompt-logprobs all \
             --no-skip-special-tokens --choice yes,no --whitespace 3",
        );
        let detection = RepetitionDetection { max_pattern_size: 9, min_pattern_size: 2, min_count: 3 };
        let expected = (SamplingParams::sampled(0.5).max_tokens(9).top_p(0.9).min_p(0.1).n(2).seed(3))
            .repetition_penalty(1.3)
            .presence_penalty(-0.5)
            .frequency_penalty(0.25)
            .logit_bias(7, -3.0)
            .logit_bias(8, 2.5)
            .allowed_token_ids([1, 2])
            .bad_word("never")
            .bad_word("ever")
            .truncate_prompt_tokens(5)
            .ignore_eos()
            .min_tokens(4)
            .stop("END")
            .stop_token_id(3)
            .include_stop_str_in_output()
            .repetition_detection(detection)
            .logprobs(2)
            .prompt_logprobs(TopLogprobs::All)
            .keep_special_tokens()
            .constraint(Constraint::Choice(vec!["yes".into(), "no".into()]))
            .whitespace(Whitespace::UpTo(3));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for options in
            ["--logit-bias 7", "--logit-bias x=1", "--logprobs -2", "--repetition-detection 3,2", "--top-k -2"]
        {
            let words = ["octavo"].into_iter().chain(options.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{options}");
        }
    }
}
