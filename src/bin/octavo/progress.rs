//! Progress on stderr: bars where it is a terminal, nothing where it is not; and the closing line.

use indicatif::{ProgressBar, ProgressStyle};
use octavo::config::{LoadProgress, LoadStage};
use octavo::llm::Llm;
use octavo::metrics::MetricsSnapshot;
use std::time::Duration;

/// Bars for loading: one for each stage, gone when it is done.
pub struct LoadBars {
    bar: Option<(LoadStage, ProgressBar)>,
}

impl LoadBars {
    pub fn new() -> Self {
        Self { bar: None }
    }

    pub fn show(&mut self, progress: LoadProgress) {
        let LoadProgress { stage, done, total } = progress;
        if self.bar.as_ref().is_none_or(|(shown, _)| *shown != stage) {
            self.clear();
            self.bar = Some((stage, stage_bar(stage)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for LoadBars {
    fn drop(&mut self) {
        self.clear();
    }
}

fn stage_bar(stage: LoadStage) -> ProgressBar {
    let template = match stage {
        LoadStage::Opening => "{spinner} opening model files",
        LoadStage::Uploading => "{spinner} weights  [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}",
        LoadStage::Compiling => "{spinner} shaders  [{bar:30}] {pos}/{len}",
    };
    styled(ProgressBar::new(0), template)
}

/// One tick for each finished prompt, with the speeds so far.
pub struct RunBar {
    bar: ProgressBar,
    shown: std::time::Instant,
}

/// Speeds need no more than this to be read.
const REFRESH: Duration = Duration::from_millis(200);

impl RunBar {
    pub fn new(prompts: usize) -> Self {
        let bar = styled(ProgressBar::new(prompts as u64), "{spinner} [{bar:30}] {pos}/{len} prompts, {msg}{elapsed}");
        bar.enable_steady_tick(REFRESH);
        Self { bar, shown: std::time::Instant::now() }
    }

    /// No bar, for output that is shown as it comes.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), shown: std::time::Instant::now() }
    }

    pub fn finished_one(&mut self) {
        self.bar.inc(1);
    }

    pub fn speeds(&mut self, llm: &Llm) {
        if !self.bar.is_hidden() && self.shown.elapsed() >= REFRESH {
            self.shown = std::time::Instant::now();
            let metrics = llm.engine().metrics();
            let (prompt, decode) = (metrics.prompt_tokens_per_second, metrics.decode_tokens_per_second);
            self.bar.set_message(format!("prompt {prompt:.0} tok/s, decode {decode:.0} tok/s, "));
        }
    }

    /// Writes to stdout or stderr through `write` without disturbing the bar.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates in this file are well-formed");
    bar.with_style(style.progress_chars("=> "))
}

/// The closing line: the adapter and the speeds.
pub fn closing_line(llm: &Llm, metrics: &MetricsSnapshot) -> String {
    let info = llm.info();
    let device = match info.backend.is_empty() {
        true => info.adapter,
        false => format!("{} ({})", info.adapter, info.backend),
    };
    format!(
        "{device} | prompt {:.1} tok/s | decode {:.1} tok/s | first token {:.0} ms",
        metrics.prompt_tokens_per_second, metrics.decode_tokens_per_second, metrics.ttft_ms.mean
    )
}

/// One tick for each request of a benchmark.
pub struct RequestBar {
    bar: ProgressBar,
}

impl RequestBar {
    pub fn new(requests: usize) -> Self {
        Self { bar: styled(ProgressBar::new(requests as u64), "{spinner} [{bar:30}] {pos}/{len} requests, {elapsed}") }
    }

    /// So many have ended.
    pub fn ended(&self, count: usize) {
        self.bar.set_position(count as u64);
    }
}

impl Drop for RequestBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
