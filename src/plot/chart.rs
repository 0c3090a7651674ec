//! One chart: title, axes with round numbers, legend, data.

use super::axis::{Axis, Scale, label, round_up};
use super::canvas::{Anchor, Canvas, Rect, Stroke, TextStyle, text_width};
use super::series::{Series, places};
use super::{colours, legend};
use crate::error::Result;
use std::path::Path;

/// Sizes of the sheet and of its texts, in pixels.
const SHEET: (f64, f64) = (760.0, 440.0);
const MARGIN: f64 = 18.0;
const TITLE: f64 = 17.0;
const TEXT: f64 = 12.0;

/// A value to point out: a dashed line across the chart with a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// At a height.
    Y(f64, String),
    /// At a place along x.
    X(f64, String),
}

/// A chart. Fill it from [`Chart::new`], then [`save`](Self::save) it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows, in a few words.
    pub title: String,
    /// Conditions of the measurement, in a smaller line; may be empty.
    pub subtitle: String,
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit.
    pub y_label: String,
    /// How x is spread; names of groups are not.
    pub x_scale: Scale,
    /// How y is spread.
    pub y_scale: Scale,
    /// Values to point out.
    pub marks: Vec<Mark>,
    /// The data.
    pub series: Series,
}

impl Chart {
    /// A chart with linear axes and no labels.
    pub fn new(title: impl Into<String>, series: Series) -> Self {
        Self {
            title: title.into(),
            subtitle: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            marks: Vec::new(),
            series,
        }
    }

    /// The chart on a sheet of its own.
    pub fn canvas(&self) -> Canvas {
        let mut canvas = Canvas::new(SHEET.0, SHEET.1);
        self.draw(&mut canvas, Rect { x: 0.0, y: 0.0, width: SHEET.0, height: SHEET.1 });
        canvas
    }

    /// Writes the chart as `.svg` or `.png`.
    ///
    /// # Errors
    /// As [`Canvas::save`].
    pub fn save(&self, path: &Path) -> Result<()> {
        self.canvas().save(path)
    }

    /// Draws the chart into a part of a sheet.
    pub fn draw(&self, canvas: &mut Canvas, room: Rect) {
        let inner = Rect {
            x: room.x + MARGIN,
            y: room.y + MARGIN,
            width: room.width - 2.0 * MARGIN,
            height: room.height - 2.0 * MARGIN,
        };
        let head = self.draw_head(canvas, inner);
        let extent = self.series.extent();
        let [x_range, y_range] = extent.unwrap_or([(0.0, 1.0), (0.0, 1.0)]);
        let (y_low, y_high) = self.y_range(y_range);
        // Numbers on the left need room before the place of the axis is known.
        let probe = Axis::new(y_low, y_high, 0.0, 1.0, self.y_scale);
        let numbers = probe.ticks(6).into_iter().map(|tick| text_width(&label(tick), TEXT)).fold(0.0, f64::max);
        let title_room = if self.y_label.is_empty() { 0.0 } else { TEXT + 8.0 };
        let left = inner.x + title_room + numbers + 8.0;
        let foot = TEXT + 10.0 + if self.x_label.is_empty() { 0.0 } else { TEXT + 8.0 };
        let area = Rect {
            x: left,
            y: inner.y + head,
            width: (inner.right() - left).max(10.0),
            height: (inner.height - head - foot).max(10.0),
        };
        let y = Axis::new(y_low, y_high, area.bottom(), area.y, self.y_scale);
        let x = Axis::new(x_range.0, x_range.1, area.x, area.right(), self.x_scale);
        self.draw_axes(canvas, inner, area, &x, &y);
        if extent.is_none() {
            let middle = (area.x + area.width / 2.0, area.y + area.height / 2.0);
            canvas.text(middle, "no data", style(TEXT, colours::FAINT_INK, Anchor::Middle));
            return;
        }
        self.series.draw(canvas, &x, &y);
        self.draw_marks(canvas, area, &x, &y);
    }

    /// Title, subtitle and legend; says how high they are.
    fn draw_head(&self, canvas: &mut Canvas, inner: Rect) -> f64 {
        let mut y = inner.y;
        if !self.title.is_empty() {
            canvas.text((inner.x, y + TITLE - 3.0), &self.title, style(TITLE, colours::INK, Anchor::Start));
            y += TITLE + 6.0;
        }
        if !self.subtitle.is_empty() {
            canvas.text((inner.x, y + TEXT - 2.0), &self.subtitle, style(TEXT, colours::FAINT_INK, Anchor::Start));
            y += TEXT + 6.0;
        }
        y += legend::draw(canvas, (inner.x, y), inner.width, &self.series.keys());
        // Room for the value above the tallest bar.
        y + 14.0 - inner.y
    }

    /// From zero where that is honest and possible, with some air above.
    fn y_range(&self, (low, high): (f64, f64)) -> (f64, f64) {
        let marks = self.marks.iter().filter_map(|mark| match mark {
            Mark::Y(value, _) if value.is_finite() => Some(*value),
            _ => None,
        });
        let (low, high) = marks.fold((low, high), |(low, high), value| (low.min(value), high.max(value)));
        match self.y_scale {
            Scale::Linear => {
                let step = round_up((high.max(0.0) - low.min(0.0)) / 10.0);
                ((low.min(0.0) / step).floor() * step, (high.max(0.0) / step).ceil() * step)
            }
            // A bar or a line at the very bottom would not be seen.
            Scale::Log if low > 0.0 => (10f64.powf((low * 0.99).log10().floor()), high),
            Scale::Log => (low, high),
        }
    }

    fn draw_axes(&self, canvas: &mut Canvas, inner: Rect, area: Rect, x: &Axis, y: &Axis) {
        for tick in y.ticks(6) {
            let at = y.pixel(tick);
            canvas.line((area.x, at), (area.right(), at), Stroke::solid(colours::GRID, 1.0));
            canvas.text((area.x - 8.0, at + 4.0), &label(tick), style(TEXT, colours::FAINT_INK, Anchor::End));
        }
        canvas.line((area.x, area.bottom()), (area.right(), area.bottom()), Stroke::solid(colours::AXIS, 1.0));
        let base = area.bottom() + TEXT + 6.0;
        let below = style(TEXT, colours::FAINT_INK, Anchor::Middle);
        match self.series.names() {
            Some(names) => {
                places(x, names.len()).zip(names).for_each(|(at, name)| canvas.text((at, base), name, below));
            }
            None => {
                let ticks = x.ticks((area.width / 90.0) as usize);
                for tick in ticks {
                    let at = x.pixel(tick);
                    let end = (at, area.bottom() + 4.0);
                    canvas.line((at, area.bottom()), end, Stroke::solid(colours::AXIS, 1.0));
                    canvas.text((at, base), &label(tick), below);
                }
            }
        }
        if !self.x_label.is_empty() {
            let at = (area.x + area.width / 2.0, base + TEXT + 6.0);
            canvas.text(at, &self.x_label, style(TEXT, colours::INK, Anchor::Middle));
        }
        if !self.y_label.is_empty() {
            let at = (inner.x + TEXT - 2.0, area.y + area.height / 2.0);
            canvas.text_upwards(at, &self.y_label, style(TEXT, colours::INK, Anchor::Middle));
        }
    }

    fn draw_marks(&self, canvas: &mut Canvas, area: Rect, x: &Axis, y: &Axis) {
        let dashes = Stroke { colour: colours::VERMILLION, width: 1.4, dashed: true };
        for (index, mark) in self.marks.iter().enumerate() {
            match mark {
                Mark::Y(value, name) if value.is_finite() => {
                    let at = y.pixel(*value);
                    canvas.line((area.x, at), (area.right(), at), dashes);
                    label_mark(canvas, (area.right() - 4.0, at - 4.0), name, Anchor::End);
                }
                Mark::X(value, name) if value.is_finite() => {
                    let at = x.pixel(*value);
                    canvas.line((at, area.y), (at, area.bottom()), dashes);
                    // Neighbours would write over each other.
                    let line = area.y + 10.0 + (index % 4) as f64 * 14.0;
                    let near_end = at + text_width(name, 11.0) + 6.0 > area.right();
                    let (shift, anchor) = if near_end { (-4.0, Anchor::End) } else { (4.0, Anchor::Start) };
                    label_mark(canvas, (at + shift, line), name, anchor);
                }
                Mark::X(..) | Mark::Y(..) => {}
            }
        }
    }
}

/// A name on top of the data, readable whatever lies below.
fn label_mark(canvas: &mut Canvas, at: (f64, f64), name: &str, anchor: Anchor) {
    const SIZE: f64 = 11.0;
    let width = text_width(name, SIZE);
    let x = if anchor == Anchor::End { at.0 - width } else { at.0 };
    canvas.rect(Rect { x, y: at.1 - SIZE, width, height: SIZE + 3.0 }, colours::PAPER, 0.8);
    canvas.text(at, name, style(SIZE, colours::VERMILLION, anchor));
}

fn style(size: f64, colour: &'static str, anchor: Anchor) -> TextStyle {
    TextStyle { size, colour, anchor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{BarSet, BoxPlot, Line};

    fn every_kind(points: Vec<(f64, f64)>) -> Vec<Series> {
        let values: Vec<f64> = points.iter().map(|point| point.1).collect();
        let line = Line::new("a line", points);
        vec![
            Series::Lines(vec![line.clone(), line.clone()]),
            Series::Steps(vec![line.clone()]),
            Series::Stacked(vec![line.clone(), line]),
            Series::Bars {
                groups: (0..values.len()).map(|index| format!("group {index}")).collect(),
                sets: vec![BarSet::new("a set", values.clone())],
            },
            Series::Histogram(values.clone()),
            Series::Boxes(vec![BoxPlot::new("a box", &values)]),
        ]
    }

    #[test]
    fn any_data_makes_a_drawing_without_nan() {
        let data = [
            vec![],
            vec![(0.0, 0.0)],
            vec![(1.0, 5.0), (2.0, 5.0)],
            vec![(1.0, f64::NAN), (f64::INFINITY, 1.0), (3.0, -2.0)],
            vec![(1e-12, 1e15), (1e12, 3.0)],
        ];
        for points in data {
            for series in every_kind(points.clone()) {
                for scale in [Scale::Linear, Scale::Log] {
                    let marks = vec![Mark::Y(3.0, "three".into()), Mark::X(f64::NAN, "nowhere".into())];
                    let chart = Chart { x_scale: scale, y_scale: scale, marks, ..Chart::new("t", series.clone()) };
                    let svg = chart.canvas().svg();
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?} {series:?}");
                    assert!(points.len() > 1 || svg.matches("<text").count() > 0);
                }
            }
        }
    }

    #[test]
    fn texts_of_a_chart_are_all_there() {
        let bars = Series::Bars {
            groups: vec!["short".into(), "long".into()],
            sets: vec![BarSet::new("paged", vec![12.0, 30.0]), BarSet::new("static", vec![4.5, 2500.0])],
        };
        let chart = Chart {
            subtitle: "on a mock".into(),
            x_label: "prompts".into(),
            y_label: "requests".into(),
            marks: vec![Mark::Y(100.0, "limit".into())],
            ..Chart::new("A title", bars)
        };
        let svg = chart.canvas().svg();
        let numbers = ["12", "4.5", "2,500"];
        let words = ["A title", "on a mock", "prompts", "requests", "short", "long", "paged", "static", "limit"];
        for text in words.into_iter().chain(numbers) {
            assert!(svg.lines().any(|line| line == text), "{text} is missing");
        }
    }

    #[test]
    fn bars_grow_from_zero() {
        let bars = Series::Bars { groups: vec!["a".into()], sets: vec![BarSet::new("", vec![90.0])] };
        let chart = Chart::new("", bars);
        assert_eq!(chart.y_range((90.0, 100.0)), (0.0, 100.0));
        assert_eq!(chart.y_range((-3.0, 7.0)), (-3.0, 7.0));
        assert_eq!(chart.y_range((0.0, 0.0)), (0.0, 0.0));
    }
}
