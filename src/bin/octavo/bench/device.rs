//! What a bench runs on: the mock in virtual time, or a model on a GPU. One function runs requests on either.

use crate::options::EngineArgs;
use crate::progress::{LoadBars, RequestBar};
use clap::Parser;
use octavo::base::TokenId;
use octavo::config::EngineConfig;
use octavo::engine::{EngineSettings, locate_model};
use octavo::error::{Error, Result};
use octavo::model::files::ModelFiles;
use octavo::runner::ModelRunner;
use octavo::runner::mock::{MockOptions, MockRunner};
use octavo::runner::wgpu::WgpuRunner;
use octavo::sched::{NewSequence, SchedulerConfig};
use octavo::sim::{Driver, RealTime, Run, TimedRunner};
use octavo::trace::Tracer;
use std::path::Path;

/// Where requests run. A model is loaded once and serves one run after another; each run has a scheduler of its own.
pub enum Device {
    /// A fresh mock for each run.
    Mock(MockOptions),
    /// A loaded model.
    Model(Box<Model>),
}

/// A model on a GPU.
pub struct Model {
    config: EngineConfig,
    /// Absent while a run has it, and for good if that failed.
    runner: Option<WgpuRunner>,
    name: String,
}

/// How requests are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each at its time of arrival.
    Continuous,
    /// So many at once, and the next batch when all of the last one have ended.
    Naive(usize),
}

impl Device {
    /// Loads the model of `args`.
    ///
    /// # Errors
    /// What loading a model says.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let files = ModelFiles::open(&locate_model(&args.model)?)?;
        let config = EngineConfig::new(args.options_of_runner()?, &files.spec)?;
        let mut bars = LoadBars::new();
        let runner = WgpuRunner::load(&files, &config, &mut |progress| bars.show(progress))?;
        let name = runner.info().adapter;
        Ok(Self::Model(Box::new(Model { config, runner: Some(runner), name })))
    }

    /// Loads a model with the usual options, save those given as on the command line.
    ///
    /// # Errors
    /// What loading a model says.
    pub fn load_with(model: &str, options: &[&str]) -> Result<Self> {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            engine: EngineArgs,
        }
        let line = ["octavo", "--model", model].into_iter().chain(options.iter().copied());
        let line = Line::try_parse_from(line).map_err(|error| Error::bug(format!("options of a bench: {error}")))?;
        Self::load(&line.engine)
    }

    /// For people.
    pub fn name(&self) -> &str {
        match self {
            Self::Mock(_) => "mock, virtual time",
            Self::Model(model) => &model.name,
        }
    }

    /// The scheduler's settings that a run starts from.
    ///
    /// # Errors
    /// A context that was asked for does not fit.
    pub fn scheduling(&self) -> Result<SchedulerConfig> {
        match self {
            Self::Mock(options) => Ok(SchedulerConfig::for_capacity(&options.capacity)),
            Self::Model(model) => {
                let runner = model.runner()?;
                Ok(EngineSettings::new(&model.config, runner.capacity(), Vec::new())?.scheduler)
            }
        }
    }

    /// Ids below this may stand in prompts.
    ///
    /// # Errors
    /// An earlier run failed.
    pub fn vocab_size(&self) -> Result<TokenId> {
        Ok(match self {
            Self::Mock(options) => options.capacity.vocab_size,
            Self::Model(model) => model.runner()?.capacity().vocab_size,
        })
    }

    /// Runs `requests` to their ends.
    ///
    /// # Errors
    /// A request that cannot run under `config`, or a failing device.
    pub fn run(&mut self, config: SchedulerConfig, requests: Vec<NewSequence>, batching: Batching) -> Result<Run> {
        self.run_with(config, requests, batching, None)
    }

    /// Runs `requests`, each at its arrival, and writes a trace of it all if `trace` is given.
    ///
    /// # Errors
    /// As [`Device::run`], and a trace that cannot be written.
    pub fn run_traced(
        &mut self,
        config: SchedulerConfig,
        requests: Vec<NewSequence>,
        trace: Option<&Path>,
    ) -> Result<Run> {
        self.run_with(config, requests, Batching::Continuous, trace)
    }

    fn run_with(
        &mut self,
        config: SchedulerConfig,
        requests: Vec<NewSequence>,
        batching: Batching,
        trace: Option<&Path>,
    ) -> Result<Run> {
        match self {
            Self::Mock(options) => Ok(drive(config, MockRunner::new(options.clone()), requests, batching, trace)?.0),
            Self::Model(model) => {
                model.runner()?;
                let runner = RealTime::new(model.runner.take().expect("just seen"));
                let (run, runner) = drive(config, runner, requests, batching, trace)?;
                model.runner = Some(runner.into_inner());
                Ok(run)
            }
        }
    }
}

impl Model {
    fn runner(&self) -> Result<&WgpuRunner> {
        self.runner.as_ref().ok_or_else(|| Error::bug("the device failed in an earlier run"))
    }
}

fn drive<R: TimedRunner>(
    config: SchedulerConfig,
    runner: R,
    requests: Vec<NewSequence>,
    batching: Batching,
    trace: Option<&Path>,
) -> Result<(Run, R)> {
    let bar = RequestBar::new(requests.len());
    let tracer = trace.map(|path| Tracer::create(path, &config, &runner.capacity())).transpose()?;
    let mut driver = Driver::new(config, runner)?;
    if let Some(tracer) = tracer {
        driver = driver.with_tracer(tracer);
    }
    let mut show = |ended| bar.ended(ended);
    match batching {
        Batching::Continuous => {
            requests.into_iter().for_each(|new| {
                driver.submit(new, None);
            });
            driver.run(&mut show)?;
        }
        Batching::Naive(size) => {
            let mut requests = requests.into_iter().peekable();
            while requests.peek().is_some() {
                for new in requests.by_ref().take(size) {
                    driver.submit(new, None);
                }
                driver.run(&mut show)?;
            }
        }
    }
    driver.finish()
}

/// Refuses `--trace` where there are several runs, of which a trace could hold one.
///
/// # Errors
/// If a trace was asked for.
pub fn refuse_trace(args: &EngineArgs) -> Result<()> {
    match &args.trace {
        None => Ok(()),
        Some(_) => Err(Error::config(
            "--trace holds one run, and this bench makes several; use it with `bench throughput` or `bench serve-sim`",
        )),
    }
}
