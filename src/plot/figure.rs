//! Several charts on one sheet.

use super::canvas::{Anchor, Canvas, Rect, TextStyle};
use super::{Chart, colours};
use crate::error::Result;
use std::path::Path;

/// Size of a panel in pixels.
const PANEL: (f64, f64) = (560.0, 350.0);
const HEAD: f64 = 40.0;

/// Charts in rows, under a common title.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// May be empty.
    pub title: String,
    /// Charts beside each other; at least 1.
    pub columns: usize,
    /// Row by row.
    pub panels: Vec<Chart>,
}

impl Figure {
    /// The figure on its sheet.
    pub fn canvas(&self) -> Canvas {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let rows = self.panels.len().div_ceil(columns);
        let head = if self.title.is_empty() { 0.0 } else { HEAD };
        let mut canvas = Canvas::new(columns as f64 * PANEL.0, head + rows as f64 * PANEL.1);
        let style = TextStyle { size: 20.0, colour: colours::INK, anchor: Anchor::Middle };
        if !self.title.is_empty() {
            canvas.text((canvas.width() / 2.0, HEAD - 10.0), &self.title, style);
        }
        for (index, chart) in self.panels.iter().enumerate() {
            let (x, y) = ((index % columns) as f64 * PANEL.0, head + (index / columns) as f64 * PANEL.1);
            chart.draw(&mut canvas, Rect { x, y, width: PANEL.0, height: PANEL.1 });
        }
        canvas
    }

    /// Writes the figure as `.svg` or `.png`.
    ///
    /// # Errors
    /// As [`Canvas::save`].
    pub fn save(&self, path: &Path) -> Result<()> {
        self.canvas().save(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Line, Series};

    #[test]
    fn panels_fill_rows_and_no_panel_is_no_fault() {
        let chart = |index: usize| Chart::new(format!("panel {index}"), Series::Lines(vec![Line::new("", vec![])]));
        let figure = Figure { title: "all".into(), columns: 2, panels: (0..3).map(chart).collect() };
        let canvas = figure.canvas();
        assert_eq!((canvas.width(), canvas.height()), (2.0 * PANEL.0, HEAD + 2.0 * PANEL.1));
        assert!((0..3).all(|index| canvas.svg().contains(&format!("panel {index}"))));
        let empty = Figure { title: String::new(), columns: 0, panels: vec![] };
        assert_eq!(empty.canvas().height(), 0.0);
    }
}
