//! The blocking front door: open a model, generate, chat, score. Everything runs on an [`Engine`], which
//! [`Llm::engine`] gives to callers that want streams.

mod params;

pub use params::{ParamsPerPrompt, default_params};

use crate::base::TokenId;
use crate::config::{EngineConfig, EngineOptions, LoadProgress, LoadStage, RunnerInfo};
use crate::engine::{
    Engine, EngineHandle, EngineSettings, Logprob, OutputBuilder, Prompt, Request, RequestOutput, RunnerFactory,
    TokenEvent, TokenStream, locate_model,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::files::ModelFiles;
use crate::model::spec::ModelSpec;
use crate::runner::ModelRunner;
use crate::runner::wgpu::WgpuRunner;
use crate::sampling::SamplingParams;
use crate::text::{ChatMessage, ChatTemplate, RenderOptions, Tokenizer};
use futures::stream::{SelectAll, StreamExt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A model on a device, ready to generate.
pub struct Llm {
    // First, so that the engine lets go of the device before anything else is dropped.
    engine: Engine,
    files: Arc<ModelFiles>,
    template: Option<Result<ChatTemplate>>,
    info: Arc<Mutex<RunnerInfo>>,
}

impl Llm {
    /// Opens a Hugging Face folder, a `.gguf` file or a hub id on the GPU.
    ///
    /// # Errors
    /// Files that are missing, broken or not supported, contradicting options, no adapter, too little memory.
    pub fn open(model: impl AsRef<str>, options: EngineOptions) -> Result<Self> {
        Self::open_with_progress(model, options, &mut |_| ())
    }

    /// As [`open`](Self::open); `progress` is called now and then on this thread.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(
        model: impl AsRef<str>,
        options: EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        progress(LoadProgress { stage: LoadStage::Opening, done: 0, total: 1 });
        let files = Arc::new(ModelFiles::open(&locate_model(model.as_ref())?)?);
        let config = EngineConfig::new(options, &files.spec)?;
        progress(LoadProgress { stage: LoadStage::Opening, done: 1, total: 1 });
        let runner = WgpuRunner::load(&files, &config, progress)?;
        let info = Arc::new(Mutex::new(runner.info()));
        let rebuild: RunnerFactory = {
            let (files, config, info) = (files.clone(), config.clone(), info.clone());
            Box::new(move || {
                let runner = WgpuRunner::load(&files, &config, &mut |_| ())?;
                *lock(&info) = runner.info();
                Ok(Box::new(runner) as Box<dyn ModelRunner>)
            })
        };
        Self::assemble(files, &config, Box::new(runner), Some(rebuild), info)
    }

    /// Opens `files` on a runner of your own: the f64 reference, or one of another kind.
    ///
    /// # Errors
    /// Contradicting options, or a tokenizer that is not supported.
    pub fn with_runner(files: ModelFiles, options: EngineOptions, runner: Box<dyn ModelRunner>) -> Result<Self> {
        let config = EngineConfig::new(options, &files.spec)?;
        Self::assemble(Arc::new(files), &config, runner, None, Arc::default())
    }

    fn assemble(
        files: Arc<ModelFiles>,
        config: &EngineConfig,
        runner: Box<dyn ModelRunner>,
        rebuild: Option<RunnerFactory>,
        info: Arc<Mutex<RunnerInfo>>,
    ) -> Result<Self> {
        let text = &files.text;
        let tokenizer = text.tokenizer.as_ref().map(Tokenizer::from_file).transpose()?;
        #[cfg_attr(not(feature = "structured"), expect(unused_mut, reason = "only guides are added"))]
        let mut settings = EngineSettings::new(config, runner.capacity(), files.end_tokens.clone())?;
        #[cfg(feature = "structured")]
        {
            let compiler = |tokenizer: &Tokenizer| -> Arc<dyn crate::sampling::guide::GuideCompiler> {
                let (ends, vocab_size) = (files.end_tokens.clone(), files.spec.vocab_size);
                Arc::new(crate::structured::GrammarCompiler::new(tokenizer.clone(), ends, vocab_size))
            };
            settings.guides = tokenizer.as_ref().map(compiler);
        }
        let engine = Engine::start(runner, rebuild, tokenizer, settings)?;
        // A broken template is no reason to refuse a model that may never chat.
        let template = ChatTemplate::from_files(text);
        Ok(Self { engine, files, template, info })
    }

    /// The engine, for streams and for figures.
    pub fn engine(&self) -> &EngineHandle {
        self.engine.handle()
    }

    /// What the model is made of.
    pub fn spec(&self) -> &ModelSpec {
        &self.files.spec
    }

    /// The model's files.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// Sampling as the model's makers suggest it; see [`default_params`].
    pub fn default_params(&self) -> SamplingParams {
        default_params(&self.files.defaults)
    }

    /// The device and what was allocated on it.
    pub fn info(&self) -> RunnerInfo {
        lock(&self.info).clone()
    }

    /// Continues each prompt; all run together. `params` is one for all prompts, or one for each.
    /// Outputs come in the order of the prompts.
    ///
    /// # Errors
    /// A count of parameters that is neither 1 nor that of the prompts; the first prompt that fails, with its index.
    /// The others are cancelled then; see [`run`](Self::run) for another way.
    pub fn generate<P: Into<Prompt>>(
        &self,
        prompts: impl IntoIterator<Item = P>,
        params: impl Into<ParamsPerPrompt>,
    ) -> Result<Vec<RequestOutput>> {
        let prompts: Vec<Prompt> = prompts.into_iter().map(Into::into).collect();
        let params = params.into().spread(prompts.len())?;
        let mut outputs: Vec<Option<RequestOutput>> = prompts.iter().map(|_| None).collect();
        let mut failure = None;
        let requests = prompts.into_iter().zip(params).map(|(prompt, params)| Request::new(prompt, params));
        self.run(requests, |index, news| {
            match news {
                RunNews::Finished(Ok(output)) => outputs[index] = Some(output),
                RunNews::Finished(Err(error)) => {
                    failure = Some(error.context(format!("prompt {index}")));
                    return Flow::Abandon;
                }
                RunNews::Delta { .. } => {}
            }
            Flow::GoOn
        });
        match failure {
            Some(error) => Err(error),
            None => {
                outputs.into_iter().map(|o| o.ok_or_else(|| Error::bug("a request ended without output"))).collect()
            }
        }
    }

    /// Runs any number of requests together, as many as the queue takes, and tells `watch` what happens to each, by its
    /// index. A request that fails does not disturb the others.
    pub fn run(&self, requests: impl IntoIterator<Item = Request>, mut watch: impl FnMut(usize, RunNews<'_>) -> Flow) {
        let mut requests = requests.into_iter().enumerate().fuse();
        let mut held_back = None;
        let mut builders: HashMap<usize, OutputBuilder> = HashMap::new();
        let mut streams = SelectAll::new();
        let mut feeding = true;
        loop {
            while feeding {
                let Some((index, request)) = held_back.take().or_else(|| requests.next()) else { break };
                // The copy is for a full queue only, and prompts are small beside the work they cause.
                let flow = match self.engine.generate(Request::clone(&request)) {
                    Ok(stream) => {
                        builders.insert(index, OutputBuilder::new(&stream));
                        streams.push(stream.map(move |event| (index, event)));
                        Flow::GoOn
                    }
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        held_back = Some((index, request));
                        break;
                    }
                    Err(error) => watch(index, RunNews::Finished(Err(error))),
                };
                match flow {
                    Flow::GoOn => {}
                    Flow::Drain => feeding = false,
                    Flow::Abandon => return,
                }
            }
            let Some((index, event)) = pollster::block_on(streams.next()) else {
                if feeding && held_back.is_some() {
                    // Others fill the queue.
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                return;
            };
            match self.pass_on(index, event, &mut builders, &mut watch) {
                Flow::GoOn => {}
                Flow::Drain => feeding = false,
                Flow::Abandon => return,
            }
        }
    }

    fn pass_on(
        &self,
        index: usize,
        event: Result<TokenEvent>,
        builders: &mut HashMap<usize, OutputBuilder>,
        watch: &mut impl FnMut(usize, RunNews<'_>) -> Flow,
    ) -> Flow {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                builders.remove(&index);
                return watch(index, RunNews::Finished(Err(error)));
            }
        };
        let mut flow = Flow::GoOn;
        if let TokenEvent::Delta { index: output, token_ids, text, logprobs } = &event {
            flow = watch(index, RunNews::Delta { output: *output, token_ids, text, logprobs });
            if flow == Flow::Abandon {
                return flow;
            }
        }
        match builders.get_mut(&index).and_then(|builder| builder.take(event)) {
            Some(output) => {
                builders.remove(&index);
                watch(index, RunNews::Finished(Ok(output)))
            }
            None => flow,
        }
    }

    /// The prompt that the model's chat template makes of `messages`, up to the opening of the answer.
    ///
    /// # Errors
    /// No template or tokenizer, or messages that the template refuses.
    pub fn chat_prompt(&self, messages: &[ChatMessage]) -> Result<Prompt> {
        let template = match &self.template {
            Some(Ok(template)) => template,
            Some(Err(error)) => return Err(error.clone().context("the model's chat template")),
            None => return Err(Error::config("this model has no chat template; use `generate` with plain text")),
        };
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let text = template.render(messages, &options)?;
        let tokenizer = self.engine.tokenizer().ok_or_else(|| Error::config("this model came without a tokenizer"))?;
        // The template has written the special tokens already.
        Ok(Prompt::Tokens(tokenizer.encode(&text, false)?))
    }

    /// The model's answer to a conversation.
    ///
    /// # Errors
    /// As [`chat_prompt`](Self::chat_prompt), and as for any request.
    pub fn chat(&self, messages: &[ChatMessage], params: SamplingParams) -> Result<RequestOutput> {
        self.chat_stream(messages, params)?.wait()
    }

    /// The model's answer to a conversation, as it comes.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn chat_stream(&self, messages: &[ChatMessage], params: SamplingParams) -> Result<TokenStream> {
        self.engine.generate(Request::new(self.chat_prompt(messages)?, params))
    }

    /// Natural logarithm of the probability of each token of `prompt` but the first.
    ///
    /// # Errors
    /// As for any request; also a prompt that is longer than the context.
    pub fn score(&self, prompt: impl Into<Prompt>) -> Result<Vec<f64>> {
        let output = self.engine.generate(Request::score(prompt))?.wait()?;
        let expected = output.prompt_token_ids.len() - 1;
        match output.prompt_logprobs.len() == expected {
            true => Ok(output.prompt_logprobs.iter().map(|token| token.logprob).collect()),
            false => Err(Error::bug(format!("{} scores came for {expected} tokens", output.prompt_logprobs.len()))),
        }
    }
}

/// What happens to a request in [`Llm::run`].
#[derive(Debug)]
pub enum RunNews<'a> {
    /// The output grew.
    Delta {
        /// Which, where the request asked for several.
        output: usize,
        /// New tokens.
        token_ids: &'a [TokenId],
        /// New text.
        text: &'a str,
        /// How likely each new token was, where the request asked.
        logprobs: &'a [Logprob],
    },
    /// The end of this request.
    Finished(Result<RequestOutput>),
}

/// How [`Llm::run`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// As before.
    GoOn,
    /// Start no further request; finish those that run.
    Drain,
    /// Return now; running requests are cancelled.
    Abandon,
}

fn lock(info: &Mutex<RunnerInfo>) -> MutexGuard<'_, RunnerInfo> {
    // The value is replaced whole, so a panic leaves it readable.
    info.lock().unwrap_or_else(PoisonError::into_inner)
}
