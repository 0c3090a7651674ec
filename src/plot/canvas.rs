//! A white sheet to draw on, in pixels from the top left, written as SVG or PNG.
//!
//! An SVG names no font but "sans-serif", so it looks native wherever it is opened. A PNG is made from the same SVG with
//! a font that is part of the program, at twice the pixels, so that it is sharp on dense screens.

use crate::error::{Error, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use svg::Document;
use svg::node::Text as Words;
use svg::node::element::{Circle, Polygon, Polyline, Rectangle, Text, Title};

/// Pixels of a PNG for each pixel of the drawing.
const PNG_SCALE: f32 = 2.0;
/// What resvg can be asked for on any machine; beyond, its bitmap may not be had.
const MAX_PNG_SIDE: u32 = 16_384;

/// Where a text stands with respect to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextStyle {
    /// Height of the font in pixels.
    pub size: f64,
    /// Colour as `#rrggbb`.
    pub colour: &'static str,
    /// Where it stands.
    pub anchor: Anchor,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stroke {
    /// Colour as `#rrggbb`.
    pub colour: &'static str,
    /// Width in pixels.
    pub width: f64,
    /// Drawn as dashes.
    pub dashed: bool,
}

impl Stroke {
    /// A solid line.
    pub const fn solid(colour: &'static str, width: f64) -> Self {
        Self { colour, width, dashed: false }
    }
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width, not negative.
    pub width: f64,
    /// Height, not negative.
    pub height: f64,
}

impl Rect {
    /// The right edge.
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    /// The lower edge.
    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }

    /// Whether its width or height is written as 0; readers of SVG complain about such.
    fn is_empty(&self) -> bool {
        self.width < 0.005 || self.height < 0.005
    }
}

/// The sheet. Later shapes lie on earlier ones.
#[derive(Clone, Debug)]
pub struct Canvas {
    width: f64,
    height: f64,
    document: Document,
}

impl Canvas {
    /// An empty sheet.
    pub fn new(width: f64, height: f64) -> Self {
        let document = Document::new()
            .set("width", number(width))
            .set("height", number(height))
            .set("viewBox", format!("0 0 {} {}", number(width), number(height)))
            .set("font-family", "sans-serif");
        let mut canvas = Self { width, height, document };
        canvas.rect(Rect { x: 0.0, y: 0.0, width, height }, super::colours::PAPER, 1.0);
        canvas
    }

    /// Width in pixels.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> f64 {
        self.height
    }

    /// A filled rectangle; `opacity` is 0 to 1. One without width or height is left out.
    pub fn rect(&mut self, rect: Rect, colour: &str, opacity: f64) {
        if rect.is_empty() {
            return;
        }
        let node = rectangle(rect, colour);
        self.add(if opacity < 1.0 { node.set("fill-opacity", number(opacity)) } else { node });
    }

    /// A filled rectangle with a text that browsers show under the pointer.
    pub fn rect_with_hint(&mut self, rect: Rect, colour: &str, hint: &str) {
        if rect.is_empty() {
            return;
        }
        self.add(rectangle(rect, colour).add(Title::new(hint)));
    }

    /// The outline of a rectangle.
    pub fn frame(&mut self, rect: Rect, stroke: Stroke) {
        let (left, top, right, bottom) = (rect.x, rect.y, rect.right(), rect.bottom());
        self.polyline(&[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], stroke);
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke) {
        self.polyline(&[from, to], stroke);
    }

    /// A line through all points; nothing for fewer than two.
    pub fn polyline(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        if points.len() < 2 {
            return;
        }
        let node = Polyline::new()
            .set("points", point_list(points))
            .set("fill", "none")
            .set("stroke", stroke.colour)
            .set("stroke-width", number(stroke.width))
            .set("stroke-linejoin", "round");
        self.add(if stroke.dashed { node.set("stroke-dasharray", "5 4") } else { node });
    }

    /// The area inside of the points.
    pub fn polygon(&mut self, points: &[(f64, f64)], colour: &str, opacity: f64) {
        let node = Polygon::new().set("points", point_list(points)).set("fill", colour);
        self.add(if opacity < 1.0 { node.set("fill-opacity", number(opacity)) } else { node });
    }

    /// A filled circle.
    pub fn disc(&mut self, centre: (f64, f64), radius: f64, colour: &str) {
        let node = Circle::new().set("cx", number(centre.0)).set("cy", number(centre.1)).set("r", number(radius));
        self.add(node.set("fill", colour));
    }

    /// A text whose base line passes through `at`.
    pub fn text(&mut self, at: (f64, f64), text: &str, style: TextStyle) {
        self.add(words(at, text, style));
    }

    /// A text that reads upwards, its base line through `at`.
    pub fn text_upwards(&mut self, at: (f64, f64), text: &str, style: TextStyle) {
        let turn = format!("rotate(-90 {} {})", number(at.0), number(at.1));
        self.add(words(at, text, style).set("transform", turn));
    }

    /// The drawing as SVG.
    pub fn svg(&self) -> String {
        format!("{}\n", self.document)
    }

    /// The drawing as PNG, [twice](self) as many pixels on each side, less for very large ones.
    ///
    /// # Errors
    /// The bitmap is too large for the machine.
    pub fn png(&self) -> Result<Vec<u8>> {
        use resvg::{tiny_skia, usvg};
        let bug = |error: String| Error::bug(format!("a drawing of octavo's own cannot be turned into a PNG: {error}"));
        let mut options = usvg::Options::default();
        let fonts = Arc::make_mut(&mut options.fontdb);
        fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
        let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
        fonts.set_sans_serif_family(family.ok_or_else(|| bug("the font has no name".into()))?);
        let tree = usvg::Tree::from_str(&self.svg(), &options).map_err(|error| bug(error.to_string()))?;
        let scale = PNG_SCALE.min(MAX_PNG_SIDE as f32 / self.width.max(self.height) as f32);
        let side = |length: f64| ((length as f32 * scale).ceil() as u32).max(1);
        let (width, height) = (side(self.width), side(self.height));
        let mut bitmap = tiny_skia::Pixmap::new(width, height)
            .ok_or_else(|| Error::memory(format!("a PNG of {width} x {height} pixels is too large; write an SVG")))?;
        resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut bitmap.as_mut());
        bitmap.encode_png().map_err(|error| bug(error.to_string()))
    }

    /// Writes the drawing to a file whose name ends in `.svg` or `.png`, and makes the folders that lead there.
    ///
    /// # Errors
    /// Another ending, or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = match Format::of(path)? {
            Format::Svg => self.svg().into_bytes(),
            Format::Png => self.png()?,
        };
        let failed = |error: std::io::Error| Error::config(format!("cannot write {}: {error}", path.display()));
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(path, bytes).map_err(failed)
    }

    fn add(&mut self, node: impl svg::Node) {
        svg::Node::append(&mut self.document, node);
    }
}

/// What a drawing can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines and texts.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// By the end of the file's name.
    ///
    /// # Errors
    /// It is neither `.svg` nor `.png`.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("").to_ascii_lowercase();
        match ending.as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => Err(Error::config(format!(
                "{} does not say which kind of picture is wanted; end its name in .svg or .png",
                path.display()
            ))),
        }
    }
}

/// About the width of `text` in pixels, for leaving room: the font is the viewer's choice, so nobody knows exactly.
pub fn text_width(text: &str, size: f64) -> f64 {
    let em = |character: char| match character {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' => 0.29,
        'f' | 't' | 'r' | '(' | ')' | '/' | '-' => 0.39,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.89,
        'A'..='Z' => 0.69,
        _ => 0.57,
    };
    text.chars().map(em).sum::<f64>() * size
}

fn rectangle(rect: Rect, colour: &str) -> Rectangle {
    Rectangle::new()
        .set("x", number(rect.x))
        .set("y", number(rect.y))
        .set("width", number(rect.width))
        .set("height", number(rect.height))
        .set("fill", colour)
}

fn words(at: (f64, f64), text: &str, style: TextStyle) -> Text {
    let anchor = match style.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let mut node = Text::new("").set("x", number(at.0)).set("y", number(at.1));
    svg::Node::append(&mut node, Words::new(text));
    node.set("font-size", number(style.size)).set("fill", style.colour).set("text-anchor", anchor)
}

/// Hundredths of a pixel are enough, and keep files small.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

fn point_list(points: &[(f64, f64)]) -> String {
    let mut list = String::with_capacity(points.len() * 14);
    for (x, y) in points {
        // Writing to a string cannot fail.
        let _ = write!(list, "{},{} ", number(*x), number(*y));
    }
    list.pop();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: TextStyle = TextStyle { size: 20.0, colour: "#000000", anchor: Anchor::Start };

    /// Dark pixels of a drawing.
    fn ink(canvas: &Canvas) -> usize {
        let bitmap = resvg::tiny_skia::Pixmap::decode_png(&canvas.png().unwrap()).unwrap();
        assert_eq!((bitmap.width(), bitmap.height()), (200, 100));
        bitmap.pixels().iter().filter(|pixel| pixel.red() < 100).count()
    }

    #[test]
    fn texts_are_escaped_and_appear_in_a_png_without_fonts_of_the_system() {
        let mut canvas = Canvas::new(100.0, 50.0);
        assert_eq!(ink(&canvas), 0);
        canvas.text((5.0, 30.0), "a<b & \"c\"", STYLE);
        assert!(canvas.svg().contains("a&lt;b &amp; \"c\""), "{}", canvas.svg());
        assert!(ink(&canvas) > 200, "{}", ink(&canvas));
    }

    #[test]
    fn shapes_cover_what_they_say() {
        let mut canvas = Canvas::new(100.0, 50.0);
        canvas.rect(Rect { x: 10.0, y: 10.0, width: 20.0, height: 5.0 }, "#000000", 1.0);
        assert_eq!(ink(&canvas), 40 * 10);
        canvas.polyline(&[(0.0, 40.0), (100.0, 40.0)], Stroke::solid("#000000", 1.0));
        assert_eq!(ink(&canvas), 40 * 10 + 200 * 2);
    }

    #[test]
    fn what_has_no_size_is_left_out() {
        let mut canvas = Canvas::new(100.0, 50.0);
        let before = canvas.svg();
        for (width, height) in [(0.0, 5.0), (5.0, 0.004), (-1.0, 5.0)] {
            canvas.rect(Rect { x: 1.0, y: 1.0, width, height }, "#000000", 1.0);
            canvas.rect_with_hint(Rect { x: 1.0, y: 1.0, width, height }, "#000000", "hint");
        }
        assert_eq!(canvas.svg(), before);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(1.0, "1"), (0.5, "0.5"), (-0.001, "0"), (12.346, "12.35"), (100.0, "100")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_ending_names_the_format() {
        assert_eq!(Format::of(Path::new("a/b.SVG")).unwrap(), Format::Svg);
        assert_eq!(Format::of(Path::new("b.png")).unwrap(), Format::Png);
        for path in ["a.jpg", "svg", ""] {
            let message = Format::of(Path::new(path)).unwrap_err().to_string();
            assert!(message.contains(".svg or .png"), "{message}");
        }
    }

    #[test]
    fn saving_makes_folders_and_names_what_it_cannot_write() {
        let folder = tempfile::tempdir().unwrap();
        let canvas = Canvas::new(10.0, 10.0);
        let path = folder.path().join("deep/er/a.svg");
        canvas.save(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), canvas.svg());
        let message = canvas.save(&path.join("b.svg")).unwrap_err().to_string();
        assert!(message.starts_with("cannot write") && message.contains("b.svg"), "{message}");
    }
}
