//! The colours of all pictures. Those of data are told apart by people with any kind of colour vision, and in print:
//! M. Okabe and K. Ito, "Color Universal Design", 2008.

/// The sheet.
pub const PAPER: &str = "#ffffff";
/// Titles and numbers.
pub const INK: &str = "#222222";
/// Labels of lesser weight.
pub const FAINT_INK: &str = "#666666";
/// Axes.
pub const AXIS: &str = "#999999";
/// Lines behind the data.
pub const GRID: &str = "#e6e6e6";

/// Okabe and Ito's blue.
pub const BLUE: &str = "#0072b2";
/// Okabe and Ito's orange.
pub const ORANGE: &str = "#e69f00";
/// Okabe and Ito's bluish green.
pub const GREEN: &str = "#009e73";
/// Okabe and Ito's vermillion.
pub const VERMILLION: &str = "#d55e00";
/// Okabe and Ito's reddish purple.
pub const PURPLE: &str = "#cc79a7";
/// Okabe and Ito's sky blue.
pub const SKY: &str = "#56b4e9";
/// A grey between waiting and nothing.
pub const GREY: &str = "#cccccc";

/// The colour of series number `index`; they repeat after eight.
pub fn of_series(index: usize) -> &'static str {
    const ALL: [&str; 8] = [BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, "#444444", "#b8a800"];
    ALL[index % ALL.len()]
}
