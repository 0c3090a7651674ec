//! Pictures of numbers: charts with axes and a legend, drawn on a sheet that becomes SVG or PNG.
//!
//! ```
//! use octavo::plot::{Chart, Line, Series};
//!
//! let line = Line::new("paged", vec![(1.0, 120.0), (2.0, 230.0), (4.0, 410.0)]);
//! let chart = Chart {
//!     x_label: "sequences at once".into(),
//!     y_label: "tokens per second".into(),
//!     ..Chart::new("More at once, more in all", Series::Lines(vec![line]))
//! };
//! assert!(chart.canvas().svg().contains("tokens per second"));
//! // chart.save("throughput.svg".as_ref())?; or "throughput.png"
//! ```
//!
//! [`Figure`] puts several charts on one sheet. [`canvas`], [`axis`] and [`legend`] are there for pictures of other kinds,
//! such as the timeline of a trace. Nothing here knows what the numbers mean.

pub mod axis;
pub mod canvas;
mod chart;
pub mod colours;
mod figure;
pub mod legend;
mod series;

pub use chart::{Chart, Mark};
pub use figure::Figure;
pub use series::{BarSet, BoxPlot, Line, Series, step_corners};
