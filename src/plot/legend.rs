//! Rows of coloured keys with names, and how much room they need.

use super::canvas::{Anchor, Canvas, Rect, Stroke, TextStyle, text_width};
use super::colours;

const SIZE: f64 = 12.0;
/// Side of a key.
const KEY: f64 = 11.0;
/// Between key and name, and between name and next key.
const GAPS: (f64, f64) = (6.0, 18.0);
/// Height of a row.
pub const ROW: f64 = 20.0;

/// How a key looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// A filled square.
    Area(&'static str),
    /// A piece of line.
    Line(Stroke),
    /// A round mark.
    Dot(&'static str),
    /// An upright tick.
    Tick(&'static str),
}

/// Draws the keys from `at` (left, top) within `width` and says how high the rows are; nothing is drawn for no keys.
pub fn draw(canvas: &mut Canvas, at: (f64, f64), width: f64, keys: &[(Key, String)]) -> f64 {
    let rows = rows(width, keys);
    for (index, row) in rows.iter().enumerate() {
        let (mut x, middle) = (at.0, at.1 + (index as f64 + 0.5) * ROW);
        for (key, name) in *row {
            draw_key(canvas, *key, x, middle);
            x += KEY + GAPS.0;
            let style = TextStyle { size: SIZE, colour: colours::INK, anchor: Anchor::Start };
            canvas.text((x, middle + 4.0), name, style);
            x += text_width(name, SIZE) + GAPS.1;
        }
    }
    rows.len() as f64 * ROW
}

/// Height that [`draw`] will use.
pub fn height(width: f64, keys: &[(Key, String)]) -> f64 {
    rows(width, keys).len() as f64 * ROW
}

fn rows(width: f64, keys: &[(Key, String)]) -> Vec<&[(Key, String)]> {
    let mut rows = Vec::new();
    let (mut start, mut used) = (0, 0.0);
    for (index, (_, name)) in keys.iter().enumerate() {
        let entry = KEY + GAPS.0 + text_width(name, SIZE);
        if index > start && used + entry > width {
            rows.push(&keys[start..index]);
            (start, used) = (index, 0.0);
        }
        used += entry + GAPS.1;
    }
    if start < keys.len() {
        rows.push(&keys[start..]);
    }
    rows
}

fn draw_key(canvas: &mut Canvas, key: Key, x: f64, middle: f64) {
    match key {
        Key::Area(colour) => canvas.rect(Rect { x, y: middle - KEY / 2.0, width: KEY, height: KEY }, colour, 1.0),
        Key::Line(stroke) => canvas.line((x, middle), (x + KEY + 3.0, middle), stroke),
        Key::Dot(colour) => canvas.disc((x + KEY / 2.0, middle), 4.0, colour),
        Key::Tick(colour) => {
            let x = x + KEY / 2.0;
            canvas.line((x, middle - KEY / 2.0), (x, middle + KEY / 2.0), Stroke::solid(colour, 2.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_wrap_and_none_is_lost() {
        let keys: Vec<_> = (0..7).map(|index| (Key::Area(colours::BLUE), format!("a name {index}"))).collect();
        assert_eq!(height(10_000.0, &keys), ROW);
        assert_eq!(height(1.0, &keys), 7.0 * ROW);
        assert_eq!(height(100.0, &[]), 0.0);
        assert_eq!(rows(200.0, &keys).concat().len(), 7);
        let mut canvas = Canvas::new(300.0, 300.0);
        assert_eq!(draw(&mut canvas, (0.0, 0.0), 200.0, &keys), height(200.0, &keys));
        assert!((0..7).all(|index| canvas.svg().contains(&format!("a name {index}"))));
    }
}
