//! The bars of the sequences, and the band of the device above them.

use super::super::timeline::{Phase, Row, Span};
use super::{MARGIN, MARKED_ROW, NAMED_ROW, Picture, SMALL, TEXT, mark, overlaps, plural, style};
use crate::plot::axis::{Axis, Scale, count, label, time_unit};
use crate::plot::canvas::{Anchor, Canvas, Rect, text_width};
use crate::plot::colours;

/// Hints for the pointer make large files larger still.
const MOST_HINTS: usize = 4000;

impl Picture<'_> {
    /// One band: prompts in the upper half and decoding in the lower where a submission holds both.
    pub(super) fn draw_device(&self, canvas: &mut Canvas, time: &Axis, area: Rect) {
        canvas.text((area.x - 8.0, area.y + 12.0), "device", style(SMALL, colours::INK, Anchor::End));
        let half = Rect { height: area.height / 2.0, ..area };
        let lower = Rect { y: area.y + half.height, ..half };
        let mut bands = [
            (Band::new(Phase::Prefill, area), true, false),
            (Band::new(Phase::Decode, area), false, true),
            (Band::new(Phase::Prefill, half), true, true),
            (Band::new(Phase::Decode, lower), true, true),
        ];
        for submission in self.timeline.submissions.iter().filter(|work| work.to >= self.from && work.from <= self.to) {
            let kind = (submission.prefill_tokens > 0, submission.decode_rows > 0);
            for (band, prefill, decode) in &mut bands {
                if kind == (*prefill, *decode) {
                    band.add(canvas, time.pixel(submission.from), time.pixel(submission.to));
                }
            }
        }
        bands.iter_mut().for_each(|(band, ..)| band.flush(canvas));
    }

    pub(super) fn draw_rows(&self, canvas: &mut Canvas, time: &Axis, area: Rect, height: f64) {
        let hints = self.shown.iter().map(|row| row.spans.len()).sum::<usize>() <= MOST_HINTS;
        // A little air between bars, as long as there is room for it.
        let air = if height >= 6.0 { height * 0.1 } else { 0.0 };
        for (index, row) in self.shown.iter().enumerate() {
            let bar = Rect { y: area.y + index as f64 * height + air, height: height - 2.0 * air, ..area };
            let name = self.names.get(&row.seq).map_or("", String::as_str);
            if height >= NAMED_ROW {
                canvas.text(
                    (area.x - 8.0, bar.bottom() - bar.height / 2.0 + 3.8),
                    name,
                    style(SMALL, colours::INK, Anchor::End),
                );
            }
            self.draw_life(canvas, time, row, bar);
            if hints {
                self.draw_bars(canvas, time, row, bar, name);
            } else {
                self.draw_thin_bars(canvas, time, row, bar);
            }
            if let Some(end) =
                row.ending.as_ref().filter(|end| height >= MARKED_ROW && end.at >= self.from && end.at <= self.to)
            {
                let centre = (time.pixel(end.at), bar.y + bar.height / 2.0);
                canvas.disc(centre, (height * 0.22).min(3.5), mark(&end.reason));
            }
        }
        if height < NAMED_ROW {
            let numbers = Axis::new(0.0, self.chosen as f64, area.y, area.bottom(), Scale::Linear);
            for tick in numbers.ticks((area.height / 60.0) as usize) {
                let at = (area.x - 8.0, numbers.pixel(tick) + 4.0);
                canvas.text(at, &label(tick), style(TEXT, colours::FAINT_INK, Anchor::End));
            }
            let at = (MARGIN + 10.0, area.y + area.height / 2.0);
            canvas.text_upwards(at, "sequences, by arrival", style(TEXT, colours::INK, Anchor::Middle));
        }
    }

    /// A thin line from arrival to end, which shows where a sequence with a slot waits for the device.
    fn draw_life(&self, canvas: &mut Canvas, time: &Axis, row: &Row, bar: Rect) {
        let (Some(first), Some(last)) = (row.spans.first(), row.spans.last()) else { return };
        let thickness = (bar.height * 0.12).min(2.0);
        if thickness >= 0.5 {
            let (left, right) = (time.pixel(first.from), time.pixel(last.to));
            let y = bar.y + (bar.height - thickness) / 2.0;
            let line = Rect { x: left, y, width: right - left, height: thickness };
            canvas.rect(line, Phase::Waiting.colour(), 1.0);
        }
    }

    fn draw_bars(&self, canvas: &mut Canvas, time: &Axis, row: &Row, bar: Rect, name: &str) {
        for span in row.spans.iter().filter(|span| overlaps(span, self.from, self.to)) {
            let (left, right) = (time.pixel(span.from), time.pixel(span.to));
            // A hair between chunks that touch.
            let gap = if right - left > 3.0 { 0.6 } else { 0.0 };
            let rect = Rect { x: left, width: (right - left - gap).max(0.6), ..bar };
            canvas.rect_with_hint(rect, span.phase.colour(), &hint(name, span));
            let text = count(span.tokens);
            let fits = bar.height >= 11.0 && rect.width > text_width(&text, SMALL) + 8.0;
            if fits && matches!(span.phase, Phase::Prefill | Phase::Recompute | Phase::Decode) && span.tokens > 0 {
                let colour = if span.phase == Phase::Prefill { colours::INK } else { colours::PAPER };
                let at = (left + rect.width / 2.0, bar.y + bar.height / 2.0 + 3.8);
                canvas.text(at, &text, style(SMALL, colour, Anchor::Middle));
            }
        }
    }

    /// Thousands of spans: what cannot be told apart becomes one.
    fn draw_thin_bars(&self, canvas: &mut Canvas, time: &Axis, row: &Row, bar: Rect) {
        let mut band: Option<Band> = None;
        for span in row.spans.iter().filter(|span| overlaps(span, self.from, self.to)) {
            let (left, right) = (time.pixel(span.from), time.pixel(span.to));
            match &mut band {
                Some(band) if band.phase == span.phase => band.add(canvas, left, right),
                _ => {
                    let mut next = Band::new(span.phase, bar);
                    next.add(canvas, left, right);
                    band.replace(next).iter_mut().for_each(|done| done.flush(canvas));
                }
            }
        }
        band.iter_mut().for_each(|last| last.flush(canvas));
    }
}

/// Bars of one colour and height; those that (nearly) touch are drawn as one.
struct Band {
    phase: Phase,
    bar: Rect,
    open: Option<(f64, f64)>,
}

impl Band {
    fn new(phase: Phase, bar: Rect) -> Self {
        Self { phase, bar, open: None }
    }

    fn add(&mut self, canvas: &mut Canvas, left: f64, right: f64) {
        match &mut self.open {
            Some((_, end)) if left - *end < 0.4 => *end = end.max(right),
            _ => {
                self.flush(canvas);
                self.open = Some((left, right));
            }
        }
    }

    fn flush(&mut self, canvas: &mut Canvas) {
        if let Some((left, right)) = self.open.take() {
            canvas.rect(Rect { x: left, width: (right - left).max(0.5), ..self.bar }, self.phase.colour(), 1.0);
        }
    }
}

fn hint(name: &str, span: &Span) -> String {
    let (unit, factor) = time_unit(span.to);
    let tokens = if span.tokens > 0 { format!(" {}", plural(span.tokens, "token")) } else { String::new() };
    let (from, to) = (label(span.from * factor), label(span.to * factor));
    format!("{name}: {}{tokens}, {from} to {to} {unit}", span.phase.name())
}
