//! What a chart can show, and the shapes of each kind.

use super::axis::{Axis, label};
use super::canvas::{Anchor, Canvas, Rect, Stroke, TextStyle, text_width};
use super::colours;
use super::legend::Key;
use crate::metrics::percentile;

/// A named list of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// For the legend; may be empty.
    pub name: String,
    /// By rising x.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// A line through `points`.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points }
    }
}

/// Bars of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct BarSet {
    /// For the legend; may be empty.
    pub name: String,
    /// One for each group.
    pub values: Vec<f64>,
}

impl BarSet {
    /// The bars of one colour.
    pub fn new(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self { name: name.into(), values }
    }
}

/// A distribution in five numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxPlot {
    /// Stands below it.
    pub name: String,
    /// The 5th, 25th, 50th, 75th and 95th percentile.
    pub percentiles: [f64; 5],
}

impl BoxPlot {
    /// The distribution of the finite `values`, which may come in any order.
    pub fn new(name: impl Into<String>, values: &[f64]) -> Self {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Self { name: name.into(), percentiles: [0.05, 0.25, 0.5, 0.75, 0.95].map(|share| percentile(&sorted, share)) }
    }
}

/// The data of a chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Series {
    /// Curves with a mark on each point where there are few.
    Lines(Vec<Line>),
    /// Lines that keep their value until the next point.
    Steps(Vec<Line>),
    /// Areas on top of each other, the first at the bottom. All lines have the x values of the first.
    Stacked(Vec<Line>),
    /// Groups of bars, each bar with its value above it.
    Bars {
        /// Names below the groups.
        groups: Vec<String>,
        /// Each with a value for each group; missing ones are not drawn.
        sets: Vec<BarSet>,
    },
    /// How often values occur, in equal bins.
    Histogram(Vec<f64>),
    /// One box for each distribution: whiskers from the 5th to the 95th percentile.
    Boxes(Vec<BoxPlot>),
}

/// Bins of a histogram.
const BINS: usize = 30;
/// Above so many points a line has no marks.
const MOST_MARKS: usize = 40;

impl Series {
    /// Whether x is a row of names instead of numbers.
    pub(super) fn names(&self) -> Option<Vec<&str>> {
        match self {
            Self::Bars { groups, .. } => Some(groups.iter().map(String::as_str).collect()),
            Self::Boxes(boxes) => Some(boxes.iter().map(|entry| entry.name.as_str()).collect()),
            _ => None,
        }
    }

    /// Smallest and largest finite x and y; `None` without any point.
    pub(super) fn extent(&self) -> Option<[(f64, f64); 2]> {
        let mut extent = Extent::default();
        match self {
            Self::Lines(lines) | Self::Steps(lines) => {
                lines.iter().flat_map(|line| &line.points).for_each(|(x, y)| extent.add(*x, *y));
            }
            Self::Stacked(lines) => {
                for (index, (x, _)) in lines.first().iter().flat_map(|line| &line.points).enumerate() {
                    extent.add(*x, 0.0);
                    extent.add(*x, lines.iter().map(|line| height_at(line, index)).sum());
                }
            }
            Self::Bars { sets, .. } => {
                sets.iter().flat_map(|set| &set.values).for_each(|value| extent.add(0.0, *value));
                extent.add(0.0, 0.0);
            }
            Self::Histogram(values) => {
                for (edges, count) in bins(values) {
                    extent.add(edges.0, 0.0);
                    extent.add(edges.1, count);
                }
            }
            Self::Boxes(boxes) => {
                boxes.iter().flat_map(|entry| entry.percentiles).for_each(|value| extent.add(0.0, value));
            }
        }
        extent.range
    }

    /// The legend; entries without a name are left out.
    pub(super) fn keys(&self) -> Vec<(Key, String)> {
        let named = |names: Vec<&String>, key: fn(&'static str) -> Key| {
            let all = names.into_iter().enumerate().filter(|(_, name)| !name.is_empty());
            all.map(|(index, name)| (key(colours::of_series(index)), name.clone())).collect()
        };
        match self {
            Self::Lines(lines) | Self::Steps(lines) => {
                named(lines.iter().map(|line| &line.name).collect(), |colour| Key::Line(Stroke::solid(colour, 2.5)))
            }
            Self::Stacked(lines) => named(lines.iter().map(|line| &line.name).collect(), Key::Area),
            Self::Bars { sets, .. } => named(sets.iter().map(|set| &set.name).collect(), Key::Area),
            Self::Histogram(_) | Self::Boxes(_) => Vec::new(),
        }
    }

    pub(super) fn draw(&self, canvas: &mut Canvas, x: &Axis, y: &Axis) {
        match self {
            Self::Lines(lines) => {
                for (index, line) in lines.iter().enumerate() {
                    draw_line(canvas, &pixels(&line.points, x, y), colours::of_series(index));
                }
            }
            Self::Steps(lines) => {
                for (index, line) in lines.iter().enumerate() {
                    let corners = step_corners(&pixels(&line.points, x, y));
                    canvas.polyline(&corners, Stroke::solid(colours::of_series(index), 1.8));
                }
            }
            Self::Stacked(lines) => draw_stack(canvas, lines, x, y),
            Self::Bars { groups, sets } => draw_bars(canvas, groups.len(), sets, x, y),
            Self::Histogram(values) => {
                for ((low, high), count) in bins(values) {
                    let (left, right) = (x.pixel(low), x.pixel(high));
                    upright(canvas, left + 0.5, (right - left - 1.0).max(0.5), count, y, colours::BLUE);
                }
            }
            Self::Boxes(boxes) => draw_boxes(canvas, boxes, x, y),
        }
    }
}

#[derive(Default)]
struct Extent {
    range: Option<[(f64, f64); 2]>,
}

impl Extent {
    fn add(&mut self, x: f64, y: f64) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        let [(x_low, x_high), (y_low, y_high)] = self.range.unwrap_or([(x, x), (y, y)]);
        self.range = Some([(x_low.min(x), x_high.max(x)), (y_low.min(y), y_high.max(y))]);
    }
}

/// Finite points in pixels.
fn pixels(points: &[(f64, f64)], x: &Axis, y: &Axis) -> Vec<(f64, f64)> {
    let finite = points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
    finite.map(|point| (x.pixel(point.0), y.pixel(point.1))).collect()
}

/// The corners of a line that keeps each height until the next point.
pub fn step_corners(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(points.len() * 2);
    for point in points {
        if let Some(last) = corners.last().filter(|last| last.1 != point.1) {
            corners.push((point.0, last.1));
        }
        corners.push(*point);
    }
    corners
}

fn draw_line(canvas: &mut Canvas, points: &[(f64, f64)], colour: &'static str) {
    canvas.polyline(points, Stroke::solid(colour, 2.0));
    if points.len() <= MOST_MARKS {
        points.iter().for_each(|point| canvas.disc(*point, 3.0, colour));
    }
}

fn height_at(line: &Line, index: usize) -> f64 {
    line.points.get(index).map_or(0.0, |point| if point.1.is_finite() { point.1 } else { 0.0 })
}

fn draw_stack(canvas: &mut Canvas, lines: &[Line], x: &Axis, y: &Axis) {
    let Some(first) = lines.first() else { return };
    let mut floor = vec![0.0; first.points.len()];
    for (number, line) in lines.iter().enumerate() {
        let along = |heights: &[f64]| -> Vec<(f64, f64)> {
            let points = first.points.iter().zip(heights);
            points.map(|(point, height)| (x.pixel(point.0), y.pixel(*height))).collect()
        };
        let mut outline = along(&floor);
        outline.reverse();
        floor.iter_mut().enumerate().for_each(|(index, height)| *height += height_at(line, index));
        let top = along(&floor);
        outline.extend(&top);
        canvas.polygon(&outline, colours::of_series(number), 0.85);
    }
}

/// The middle of group `index` and the room it has.
fn place(x: &Axis, index: usize, count: usize) -> (f64, f64) {
    let room = (x.to - x.from) / count.max(1) as f64;
    (x.from + (index as f64 + 0.5) * room, room)
}

/// The pixels below which the names of groups stand.
pub(super) fn places(x: &Axis, count: usize) -> impl Iterator<Item = f64> {
    let x = *x;
    (0..count).map(move |index| place(&x, index, count).0)
}

fn upright(canvas: &mut Canvas, left: f64, width: f64, value: f64, y: &Axis, colour: &str) -> f64 {
    let (top, bottom) = (y.pixel(value), y.pixel(0.0));
    let rect = Rect { x: left, y: top.min(bottom), width, height: (top - bottom).abs() };
    canvas.rect(rect, colour, 1.0);
    rect.y
}

fn draw_bars(canvas: &mut Canvas, group_count: usize, sets: &[BarSet], x: &Axis, y: &Axis) {
    for group in 0..group_count {
        let (middle, room) = place(x, group, group_count);
        // Few bars would otherwise be as wide as doors.
        let width = (room * 0.72 / sets.len().max(1) as f64).min(70.0);
        let left = middle - width * sets.len() as f64 / 2.0;
        for (index, set) in sets.iter().enumerate() {
            let Some(value) = set.values.get(group).filter(|value| value.is_finite()) else { continue };
            let left = left + index as f64 * width;
            let top = upright(canvas, left + 1.0, (width - 2.0).max(1.0), *value, y, colours::of_series(index));
            let text = label(*value);
            if text_width(&text, 11.0) <= width + 8.0 {
                let style = TextStyle { size: 11.0, colour: colours::INK, anchor: Anchor::Middle };
                canvas.text((left + width / 2.0, top - 4.0), &text, style);
            }
        }
    }
}

fn draw_boxes(canvas: &mut Canvas, boxes: &[BoxPlot], x: &Axis, y: &Axis) {
    for (index, entry) in boxes.iter().enumerate() {
        let (middle, room) = place(x, index, boxes.len());
        let half = (room * 0.25).min(30.0);
        let [low, first, median, third, high] = entry.percentiles.map(|value| y.pixel(value));
        let thin = Stroke::solid(colours::INK, 1.2);
        canvas.line((middle, low), (middle, high), thin);
        for end in [low, high] {
            canvas.line((middle - half / 2.0, end), (middle + half / 2.0, end), thin);
        }
        let rect = Rect { x: middle - half, y: third, width: 2.0 * half, height: first - third };
        canvas.rect(rect, colours::of_series(index), 1.0);
        canvas.frame(rect, thin);
        canvas.line((middle - half, median), (middle + half, median), Stroke::solid(colours::PAPER, 2.5));
        let style = TextStyle { size: 11.0, colour: colours::INK, anchor: Anchor::Start };
        canvas.text((middle + half + 5.0, median + 4.0), &label(entry.percentiles[2]), style);
    }
}

/// Equal bins over the finite values, with their counts.
fn bins(values: &[f64]) -> Vec<((f64, f64), f64)> {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if finite.is_empty() {
        return Vec::new();
    }
    let width = if high > low { (high - low) / BINS as f64 } else { 1.0 };
    let mut counts = [0.0; BINS];
    for value in finite {
        counts[(((value - low) / width) as usize).min(BINS - 1)] += 1.0;
    }
    let edge = |index: usize| low + index as f64 * width;
    counts.into_iter().enumerate().map(|(index, count)| ((edge(index), edge(index + 1)), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_cover_the_data_and_skip_what_is_not_finite() {
        let line = Line::new("", vec![(1.0, 2.0), (3.0, f64::NAN), (5.0, -1.0)]);
        assert_eq!(Series::Lines(vec![line.clone()]).extent(), Some([(1.0, 5.0), (-1.0, 2.0)]));
        let up = Line::new("", vec![(1.0, 2.0), (3.0, 1.0), (5.0, 4.0)]);
        assert_eq!(Series::Stacked(vec![up.clone(), up]).extent(), Some([(1.0, 5.0), (0.0, 8.0)]));
        assert_eq!(Series::Lines(vec![]).extent(), None);
        assert_eq!(Series::Histogram(vec![f64::INFINITY]).extent(), None);
    }

    #[test]
    fn every_value_is_in_a_bin() {
        let values: Vec<f64> = (0..1000).map(|index| f64::from(index) * 0.1).collect();
        let bins = bins(&values);
        assert_eq!(bins.iter().map(|(_, count)| count).sum::<f64>(), 1000.0);
        assert_eq!((bins[0].0.0, bins.len()), (0.0, BINS));
        assert_eq!(super::bins(&[4.0, 4.0])[0], ((4.0, 5.0), 2.0));
    }

    #[test]
    fn steps_turn_at_the_next_point() {
        assert_eq!(
            step_corners(&[(0.0, 1.0), (2.0, 3.0), (4.0, 3.0)]),
            [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (4.0, 3.0)]
        );
    }

    #[test]
    fn boxes_are_made_of_percentiles() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(BoxPlot::new("", &values).percentiles, [5.0, 25.0, 50.0, 75.0, 95.0]);
    }
}
