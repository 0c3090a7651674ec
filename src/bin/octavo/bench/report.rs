//! Tables for the terminal, and files for those who look later.

use octavo::error::{Error, Result};
use octavo::sim::{Spread, Summary};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Rows under a head, in columns as wide as they must be; the first is flush left, the others flush right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_string()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                match column {
                    0 => write!(line, " {cell:<width$}")?,
                    _ => write!(line, "  {cell:>width$}")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                writeln!(f, "  {}", "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
            }
        }
        Ok(())
    }
}

/// Three significant digits or so, as one reads them.
pub fn number(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 0.01 || x == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// A share in hundredths.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The waiting times of a run.
pub fn times(summary: &Summary) -> Table {
    let mut table = Table::new(&["milliseconds", "mean", "p50", "p95", "p99", "max"]);
    let rows: [(&str, &Spread); 5] = [
        ("queue (until admitted)", &summary.queue_ms),
        ("TTFT (time to first token)", &summary.ttft_ms),
        ("TPOT (time per later token)", &summary.tpot_ms),
        ("ITL (between two tokens)", &summary.itl_ms),
        ("E2E (until the end)", &summary.e2e_ms),
    ];
    for (name, spread) in rows {
        let values = [spread.mean, spread.p50, spread.p95, spread.p99, spread.max];
        table.row(std::iter::once(name.to_string()).chain(values.map(number)).collect());
    }
    table
}

/// One line on what was done.
pub fn totals(summary: &Summary) -> String {
    format!(
        "{} requests in {:.2} s: {} prompt tokens ({} from the cache), {} generated; {} tok/s in all, {} tok/s generated, \
         {} preemptions\n",
        summary.completed + summary.failed,
        summary.seconds,
        summary.input_tokens,
        summary.cached_tokens,
        summary.output_tokens,
        number(summary.total_tokens_per_second),
        number(summary.output_tokens_per_second),
        summary.preemptions
    )
}

/// Writes a file and makes its folder.
///
/// # Errors
/// Names the file and the reason.
pub fn save_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::bug(format!("a result has no JSON form: {error}")))?;
    make_folder(path)?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Error::config(format!("cannot write {}: {error}", path.display())))
}

/// Makes the folder that `path` lies in.
///
/// # Errors
/// Names the folder and the reason.
pub fn make_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::config(format!("cannot make the folder {}: {error}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["what", "µs"]);
        table.row(vec!["long name".into(), "1".into()]);
        table.row(vec!["x".into(), "12.5".into()]);
        let text = table.to_string();
        assert_eq!(text, "  what         µs\n  ---------------\n  long name     1\n  x          12.5\n");
    }

    #[test]
    fn numbers_keep_what_matters() {
        let texts = [1234.6, 45.67, 1.234, 0.0, 0.00123].map(number);
        assert_eq!(texts, ["1235", "45.7", "1.23", "0.00", "1.23e-3"]);
    }
}
