//! The picture of a trace: a bar for each sequence, the device above them, memory and queues below, all on one time axis.

mod panels;
mod rows;

use super::timeline::{Phase, Row, Span, Timeline};
use crate::base::BLOCK_TOKENS;
use crate::error::{Error, Result};
use crate::plot::axis::{Axis, Scale, count, label, time_unit};
use crate::plot::canvas::{Anchor, Canvas, Rect, Stroke, TextStyle, text_width};
use crate::plot::colours;
use crate::plot::legend::{self, Key};
use std::collections::HashMap;

/// What is drawn, and how large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RenderOptions {
    /// Width in pixels.
    pub width: f64,
    /// The first moment, in seconds since the first event; the beginning of the trace if `None`.
    pub from: Option<f64>,
    /// The last moment, on the same clock; the end of the trace if `None`.
    pub to: Option<f64>,
    /// Most sequences: those that arrived first of all that are alive in the time that is shown, which then ends with
    /// them. `None` for all; of thousands, every second, third or so is drawn.
    pub max_rows: Option<usize>,
}

impl Default for RenderOptions {
    /// The whole trace.
    fn default() -> Self {
        Self { width: 1200.0, from: None, to: None, max_rows: None }
    }
}

const MARGIN: f64 = 20.0;
const TEXT: f64 = 12.0;
const SMALL: f64 = 10.5;
/// All rows together are about so high, but none is higher than `MAX_ROW` or lower than `MIN_ROW`.
const ROWS: f64 = 640.0;
const MAX_ROW: f64 = 20.0;
const MIN_ROW: f64 = 0.8;
/// From here on a row has a mark at its end.
const MARKED_ROW: f64 = 4.0;
/// From here on a row has room for its name.
const NAMED_ROW: f64 = 12.0;
const PANEL_GAP: f64 = 30.0;
const BLOCKS_PANEL: f64 = 130.0;
const QUEUE_PANEL: f64 = 80.0;
const FINISHED: &str = colours::INK;
const ENDED: &str = "#888888";
const FAILED: &str = "#b00020";

impl Phase {
    /// Pale where it waits, strong where it is computed.
    const fn colour(self) -> &'static str {
        match self {
            Self::Waiting => "#dcdcdc",
            Self::Prefill => colours::ORANGE,
            Self::Recompute => colours::VERMILLION,
            Self::Decode => colours::BLUE,
            Self::Preempted => "#f6c9a8",
            Self::SwappedOut => colours::PURPLE,
        }
    }

    const fn legend(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for a slot",
            Self::Prefill => "prefill (tokens)",
            Self::Recompute => "recompute what was dropped",
            Self::Decode => "decode (tokens)",
            Self::Preempted => "preempted",
            Self::SwappedOut => "swapped out to the host",
        }
    }
}

/// Draws a trace.
///
/// # Errors
/// A width too small for any picture, or a time range that holds nothing.
pub fn render(timeline: &Timeline, options: &RenderOptions) -> Result<Canvas> {
    if !(options.width >= 300.0 && options.width <= 20_000.0) {
        return Err(Error::config(format!("the width is {} pixels; choose one from 300 to 20000", options.width)));
    }
    let from = options.from.unwrap_or(0.0);
    let to = options.to.unwrap_or(timeline.end.max(from + 1e-6));
    if !(from < to && from.is_finite() && to.is_finite()) {
        return Err(Error::config(format!(
            "the time from {from} s to {to} s is empty; the trace goes from 0 s to {} s",
            timeline.end
        )));
    }
    let alive: Vec<&Row> =
        timeline.rows.iter().filter(|row| row.spans.iter().any(|span| overlaps(span, from, to))).collect();
    let chosen = &alive[..alive.len().min(options.max_rows.unwrap_or(usize::MAX))];
    let last = chosen.iter().filter_map(|row| row.spans.last()).map(|span| span.to).fold(from, f64::max);
    let to = if options.to.is_none() && chosen.len() < alive.len() && last > from { last } else { to };
    let stride = ((chosen.len() as f64 * MIN_ROW / ROWS).ceil() as usize).max(1);
    let shown = chosen.iter().copied().step_by(stride).collect();
    let picture =
        Picture { timeline, shown, chosen: chosen.len(), alive: alive.len(), names: names(&timeline.rows), from, to };
    Ok(picture.draw(options.width))
}

fn overlaps(span: &Span, from: f64, to: f64) -> bool {
    span.to >= from && span.from <= to
}

/// What a row is called: by its request, and by a number within it where that has several.
fn names(rows: &[Row]) -> HashMap<u64, String> {
    let mut siblings: HashMap<u64, Vec<u64>> = HashMap::new();
    rows.iter().for_each(|row| siblings.entry(row.request).or_default().push(row.seq));
    let of = |(request, seqs): (u64, Vec<u64>)| {
        let many = seqs.len() > 1;
        seqs.into_iter().enumerate().map(move |(index, seq)| {
            (seq, if many { format!("request {request}/{}", index + 1) } else { format!("request {request}") })
        })
    };
    siblings.into_iter().flat_map(of).collect()
}

struct Picture<'a> {
    timeline: &'a Timeline,
    /// The rows.
    shown: Vec<&'a Row>,
    /// Sequences that they stand for.
    chosen: usize,
    /// Sequences in the time that is shown.
    alive: usize,
    names: HashMap<u64, String>,
    from: f64,
    to: f64,
}

impl Picture<'_> {
    fn draw(&self, width: f64) -> Canvas {
        let row_height = (ROWS / self.shown.len().max(1) as f64).clamp(MIN_ROW, MAX_ROW);
        let (keys, inner) = (self.keys(row_height >= MARKED_ROW), width - 2.0 * MARGIN);
        let rows_height = (row_height * self.shown.len() as f64).max(MAX_ROW);
        let gutter = self.gutter(row_height);
        let head = MARGIN + 50.0 + legend::height(inner, &keys) + 8.0;
        let device = Rect { x: MARGIN + gutter, y: head, width: inner - gutter, height: 16.0 };
        let rows = Rect { y: device.bottom() + 8.0, height: rows_height, ..device };
        let blocks = Rect { y: rows.bottom() + PANEL_GAP, height: BLOCKS_PANEL, ..device };
        let queue = Rect { y: blocks.bottom() + PANEL_GAP, height: QUEUE_PANEL, ..device };
        let mut canvas = Canvas::new(width, queue.bottom() + 52.0);
        self.draw_head(&mut canvas, &keys, inner);
        let time = Axis::new(self.from, self.to, device.x, device.right(), Scale::Linear);
        self.draw_time(&mut canvas, &time, &[device, rows, blocks, queue]);
        self.draw_device(&mut canvas, &time, device);
        self.draw_rows(&mut canvas, &time, rows, row_height);
        self.draw_blocks(&mut canvas, &time, blocks);
        self.draw_queue(&mut canvas, &time, queue);
        canvas
    }

    /// Room for names and numbers on the left.
    fn gutter(&self, row_height: f64) -> f64 {
        let widest = |size| {
            let names = self.shown.iter().filter_map(|row| self.names.get(&row.seq));
            names.map(|name| text_width(name, size)).fold(0.0, f64::max)
        };
        if row_height >= NAMED_ROW { widest(SMALL).max(60.0) + 10.0 } else { 70.0 }
    }

    /// What occurs, with the marks at the ends of rows if those are drawn.
    fn keys(&self, marked: bool) -> Vec<(Key, String)> {
        let spans = || self.shown.iter().flat_map(|row| &row.spans).filter(|span| overlaps(span, self.from, self.to));
        let phases = Phase::ALL.into_iter().filter(|phase| spans().any(|span| span.phase == *phase));
        let mut keys: Vec<_> = phases.map(|phase| (Key::Area(phase.colour()), phase.legend().to_owned())).collect();
        let endings = [(FINISHED, "finished"), (ENDED, "ended by the host"), (FAILED, "ended with an error")];
        let marks = || self.shown.iter().filter_map(|row| row.ending.as_ref()).map(|end| mark(&end.reason));
        let drawn = endings.into_iter().filter(|(colour, _)| marked && marks().any(|mark| mark == *colour));
        keys.extend(drawn.map(|(colour, name)| (Key::Dot(colour), name.to_owned())));
        keys
    }

    fn draw_head(&self, canvas: &mut Canvas, keys: &[(Key, String)], inner: f64) {
        let timeline = self.timeline;
        let (unit, factor) = time_unit(timeline.end);
        let span = label(timeline.end * factor);
        let mut title = format!(
            "{} and {} in {span} {unit}",
            plural(timeline.rows.len() as u64, "sequence"),
            plural(timeline.tokens, "token")
        );
        for (number, what) in [(timeline.preemptions, "preemption"), (timeline.swaps, "swap")] {
            if number > 0 {
                title += &format!(", {}", plural(number, what));
            }
        }
        let (config, capacity) = (&timeline.header.config, &timeline.header.capacity);
        let mut notes = vec![
            format!("{} KV blocks of {BLOCK_TOKENS} tokens", count(u64::from(capacity.block_count))),
            format!("up to {} at once", plural(config.max_num_seqs as u64, "sequence")),
            format!("{} a step", plural(config.max_num_batched_tokens as u64, "token")),
            format!("policy {}", kebab(&config.policy)),
        ];
        if self.chosen < self.alive {
            let (chosen, alive) = (count(self.chosen as u64), count(self.alive as u64));
            notes.push(format!("the first {chosen} of {alive} sequences are drawn"));
        }
        if self.shown.len() < self.chosen {
            let stride = self.chosen.div_ceil(self.shown.len());
            notes.push(format!("one in {stride} of {} sequences is drawn", count(self.chosen as u64)));
        }
        if timeline.truncated {
            notes.push("the trace stops in the middle".into());
        }
        canvas.text((MARGIN, MARGIN + 14.0), &title, style(17.0, colours::INK, Anchor::Start));
        canvas.text((MARGIN, MARGIN + 34.0), &notes.join(", "), style(TEXT, colours::FAINT_INK, Anchor::Start));
        legend::draw(canvas, (MARGIN, MARGIN + 46.0), inner, keys);
    }

    /// Lines through all panels, and the numbers below.
    fn draw_time(&self, canvas: &mut Canvas, time: &Axis, panels: &[Rect]) {
        let Some(last) = panels.last() else { return };
        let (unit, factor) = time_unit(self.to - self.from);
        let scaled = Axis::new(self.from * factor, self.to * factor, time.from, time.to, Scale::Linear);
        for tick in scaled.ticks((last.width / 90.0) as usize) {
            let at = scaled.pixel(tick);
            for panel in panels {
                canvas.line((at, panel.y), (at, panel.bottom()), Stroke::solid(colours::GRID, 1.0));
            }
            canvas.line((at, last.bottom()), (at, last.bottom() + 4.0), Stroke::solid(colours::AXIS, 1.0));
            canvas.text((at, last.bottom() + 18.0), &label(tick), style(TEXT, colours::FAINT_INK, Anchor::Middle));
        }
        let middle = (last.x + last.width / 2.0, last.bottom() + 38.0);
        canvas.text(middle, &format!("time, {unit}"), style(TEXT, colours::INK, Anchor::Middle));
    }
}

/// The mark at the end of a row.
fn mark(reason: &str) -> &'static str {
    match reason {
        "stop" | "length" => FINISHED,
        "error" => FAILED,
        _ => ENDED,
    }
}

fn plural(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

/// The name of an option's value, as one writes it on the command line.
fn kebab(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn style(size: f64, colour: &'static str, anchor: Anchor) -> TextStyle {
    TextStyle { size, colour, anchor }
}
