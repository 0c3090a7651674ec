//! Memory and queue over time.

use super::super::timeline::Counts;
use super::{Picture, TEXT, style};
use crate::plot::axis::{Axis, Scale, count, label};
use crate::plot::canvas::{Anchor, Canvas, Rect, Stroke};
use crate::plot::legend::{self, Key};
use crate::plot::{colours, step_corners};

impl Picture<'_> {
    pub(super) fn draw_blocks(&self, canvas: &mut Canvas, time: &Axis, area: Rect) {
        let total = f64::from(self.timeline.header.capacity.block_count);
        let blocks = Axis::new(0.0, total, area.bottom(), area.y, Scale::Linear);
        draw_numbers(canvas, &blocks, area, 5);
        let used = self.steps(time, &blocks, |counts| counts.used);
        let cached = self.steps(time, &blocks, |counts| counts.cached);
        if let (Some(first), Some(last)) = (used.first(), used.last()) {
            let mut outline = used.clone();
            outline.extend([(last.0, area.bottom()), (first.0, area.bottom())]);
            canvas.polygon(&outline, colours::BLUE, 0.25);
        }
        let (solid, dashed) =
            (Stroke::solid(colours::BLUE, 1.6), Stroke { colour: colours::GREEN, width: 1.6, dashed: true });
        canvas.polyline(&used, solid);
        canvas.polyline(&cached, dashed);
        let peak = self.timeline.counts.iter().map(|(_, counts)| counts.used).max().unwrap_or(0);
        let share = if total > 0.0 { 100.0 * peak as f64 / total } else { 0.0 };
        let used = format!("KV blocks in use (at most {}, {share:.0} %)", count(peak));
        let keys =
            [(Key::Line(solid), used), (Key::Line(dashed), "named in the prefix cache, in use or not".to_owned())];
        draw_panel_keys(canvas, area, &keys);
    }

    pub(super) fn draw_queue(&self, canvas: &mut Canvas, time: &Axis, area: Rect) {
        let most = self.timeline.counts.iter().map(|(_, counts)| counts.running.max(counts.waiting)).max().unwrap_or(0);
        let sequences = Axis::new(0.0, most.max(1) as f64, area.bottom(), area.y, Scale::Linear);
        draw_numbers(canvas, &sequences, area, 4);
        let running = Stroke::solid(colours::BLUE, 1.6);
        let waiting = Stroke { colour: colours::ORANGE, width: 1.6, dashed: true };
        canvas.polyline(&self.steps(time, &sequences, |counts| counts.running), running);
        canvas.polyline(&self.steps(time, &sequences, |counts| counts.waiting), waiting);
        let keys = [(running, "sequences with a slot"), (waiting, "waiting")];
        draw_panel_keys(canvas, area, &keys.map(|(stroke, name)| (Key::Line(stroke), name.to_owned())));
    }

    /// A number over the time that is shown, as the corners of its steps. Of changes within half a pixel, the largest and
    /// the last are kept.
    fn steps(&self, time: &Axis, axis: &Axis, number: impl Fn(&Counts) -> u64) -> Vec<(f64, f64)> {
        let counts = &self.timeline.counts;
        let begin = counts.partition_point(|(at, _)| *at <= self.from).saturating_sub(1);
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last = None;
        for (at, now) in counts[begin..].iter().take_while(|(at, _)| *at <= self.to) {
            let (x, y) = (time.pixel(*at), axis.pixel(number(now) as f64));
            match points.last() {
                Some(point) if x - point.0 < 0.5 && points.len() >= 2 => {
                    let peak = points.len() - 1;
                    points[peak].1 = points[peak].1.min(y);
                }
                _ => {
                    if let Some((x, y)) = last {
                        points.push((x, y));
                    }
                    points.push((x, y));
                }
            }
            last = Some((x, y));
        }
        points.extend(last.map(|(_, y)| (time.pixel(self.to.min(self.timeline.end)), y)));
        step_corners(&points)
    }
}

fn draw_numbers(canvas: &mut Canvas, axis: &Axis, area: Rect, most: usize) {
    for tick in axis.ticks(most).into_iter().filter(|tick| tick.fract() == 0.0) {
        let at = axis.pixel(tick);
        canvas.line((area.x, at), (area.right(), at), Stroke::solid(colours::GRID, 1.0));
        canvas.text((area.x - 8.0, at + 4.0), &label(tick), style(TEXT, colours::FAINT_INK, Anchor::End));
    }
    canvas.line((area.x, area.bottom()), (area.right(), area.bottom()), Stroke::solid(colours::AXIS, 1.0));
}

fn draw_panel_keys(canvas: &mut Canvas, area: Rect, keys: &[(Key, String)]) {
    legend::draw(canvas, (area.x, area.y - legend::ROW - 1.0), area.width, keys);
}
