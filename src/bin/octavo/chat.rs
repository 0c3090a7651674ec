//! `octavo chat`: several turns with a model. Earlier turns come from the prefix cache, so that answers start fast.

use crate::Outcome;
use crate::interrupt::Interrupt;
use crate::logprob_view;
use crate::options::EngineArgs;
use crate::output::{self, Reader};
use crate::progress::closing_line;
use crate::sampling::SamplingArgs;
use futures::StreamExt;
use octavo::engine::{OutputBuilder, RequestOutput, TokenEvent};
use octavo::error::{Error, Result};
use octavo::llm::Llm;
use octavo::sampling::SamplingParams;
use octavo::text::ChatMessage;
use std::io::{BufRead, IsTerminal, Write};

const EXAMPLES: &str = "\
Examples:
  octavo chat --model M
  octavo chat --model M --system \"You answer in rhymes.\" --temperature 0.7
  octavo chat --model M --message \"Why is the sky blue?\"

Each line that you type is a message; /reset forgets the conversation, /quit or the end of input
leaves. Ctrl-C ends an answer early. Lines can also come from a pipe.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ask this one question, print the answer and leave
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// What the model should be told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: Args) -> Result<Outcome> {
    args.sampling.check()?;
    if args.sampling.n > 1 {
        let n = args.sampling.n;
        return Err(Error::config(format!("-n is {n}, but a chat has one answer; use `octavo generate`")));
    }
    let llm = args.engine.open()?;
    let params = args.sampling.params(&llm.default_params())?;
    let interrupt = Interrupt::install(llm.engine());
    let opening: Vec<ChatMessage> = args.system.iter().map(|text| ChatMessage::new("system", text.as_str())).collect();
    // A model without a template is refused now, not after the first message was typed.
    llm.chat_prompt(&[opening.as_slice(), &[ChatMessage::new("user", "")]].concat())?;
    let mut chat = Chat { llm: &llm, params, interrupt, messages: opening.clone() };
    let outcome = match args.message {
        Some(message) => chat.turn(message).map(|_| match chat.interrupt.asked() {
            true => Outcome::Failure,
            false => Outcome::Success,
        }),
        None => chat.converse(&opening),
    };
    eprintln!("{}", closing_line(&llm, &llm.engine().metrics()));
    outcome
}

struct Chat<'a> {
    llm: &'a Llm,
    params: SamplingParams,
    interrupt: Interrupt,
    messages: Vec<ChatMessage>,
}

impl Chat<'_> {
    /// Turns from standard input until it ends.
    fn converse(&mut self, opening: &[ChatMessage]) -> Result<Outcome> {
        let at_terminal = std::io::stdin().is_terminal();
        let mut outcome = Outcome::Success;
        loop {
            if at_terminal {
                eprint!("> ");
                // Without the prompt the conversation still works.
                let _ = std::io::stderr().flush();
            }
            let mut line = String::new();
            let read = std::io::stdin().lock().read_line(&mut line);
            match read.map_err(|error| Error::load(format!("cannot read your message: {error}")))? {
                0 => return Ok(outcome),
                _ => line.truncate(line.trim_end().len()),
            }
            match line.as_str() {
                "" => continue,
                "/quit" => return Ok(outcome),
                "/reset" => self.messages = opening.to_vec(),
                _ => match self.turn(line) {
                    Ok(Reader::Present) => {}
                    Ok(Reader::Gone) => return Ok(outcome),
                    // A message that is too long, for one, is no reason to lose the conversation.
                    Err(error) => {
                        eprintln!("error: {error}");
                        self.messages.pop();
                        outcome = Outcome::Failure;
                    }
                },
            }
        }
    }

    /// One message and its answer, which is written as it comes and joins the conversation.
    fn turn(&mut self, message: String) -> Result<Reader> {
        self.messages.push(ChatMessage::new("user", message));
        let (output, reader) = self.interrupt.clone().during(|| pollster::block_on(self.answer()))?;
        let tables = logprob_view::tables(self.llm.engine().tokenizer(), &output);
        self.messages.push(ChatMessage::new("assistant", output.text));
        match reader {
            Reader::Present => output::write(&format!("\n{tables}")),
            Reader::Gone => Ok(Reader::Gone),
        }
    }

    async fn answer(&self) -> Result<(RequestOutput, Reader)> {
        let mut stream = self.llm.chat_stream(&self.messages, self.params.clone())?;
        let mut builder = OutputBuilder::new(&stream);
        let mut reader = Reader::Present;
        while let Some(event) = stream.next().await {
            let event = event?;
            if let TokenEvent::Delta { text, .. } = &event
                && reader == Reader::Present
                && output::write(text)? == Reader::Gone
            {
                reader = Reader::Gone;
                stream.cancel();
            }
            if let Some(output) = builder.take(event) {
                return Ok((output, reader));
            }
        }
        Err(Error::bug("a stream ended without an end event"))
    }
}
