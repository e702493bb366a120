//! Results on standard output, complaints on standard error, and how sizes, times and tables are written.

use sluice_protocol::Timestamp;
use std::fmt::Write as _;
use std::io::Write as _;

/// Prints a result. A reader that went away, such as `head`, is no error.
pub(crate) fn print(text: &str) {
    let _ = write(text);
}

/// Writes a part of a result that may have no end: whoever goes on with it stops at an error, when nobody reads.
pub(crate) fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Prints a line for people.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// As much of a line as the terminal on standard error shows in one: a line that wraps cannot be drawn over.
pub(crate) fn fitted(line: &str) -> String {
    let width = terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| usize::from(width.0));
    line.chars().take(width.unwrap_or(usize::MAX).saturating_sub(1)).collect()
}

/// `17 B`, `1.2 KiB`, `3.4 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// `950`, `12.3 k`, `4.5 M`.
pub(crate) fn count(value: f64) -> String {
    match value {
        value if value < 1_000.0 => format!("{value:.0}"),
        value if value < 1_000_000.0 => format!("{:.1} k", value / 1_000.0),
        value => format!("{:.1} M", value / 1_000_000.0),
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How long ago, in one or two units: `3s`, `4m 10s`, `2h 5m`, `3d 4h`.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.since(then).0 / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// In UTC: `2026-11-29 19:53:40Z`.
pub(crate) fn time(timestamp: Timestamp) -> String {
    let millis = i64::try_from(timestamp.0).unwrap_or(i64::MAX);
    let time = chrono::DateTime::from_timestamp_millis(millis).unwrap_or_default();
    time.format("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Columns as wide as their widest cell, two spaces between them.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], indent: &str) -> String {
    let head: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let width = |cell: &String| cell.chars().count();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            std::iter::once(&head).chain(rows).filter_map(|row| row.get(column)).map(width).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = indent.to_owned();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{age, bytes, count, table, thousands, time};
    use sluice_protocol::Timestamp;

    #[test]
    fn quantities_read_well() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(5 << 30)], ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!([count(950.0), count(12_345.0), count(4_500_000.0)], ["950", "12.3 k", "4.5 M"]);
        assert_eq!([thousands(0), thousands(999), thousands(1_234_567)], ["0", "999", "1,234,567"]);
        let ago = |seconds: u64| age(Timestamp(1_000_000_000), Timestamp(1_000_000_000 - seconds * 1000));
        assert_eq!([ago(3), ago(250), ago(7_500), ago(273_600)], ["3s", "4m 10s", "2h 5m", "3d 4h"]);
        assert_eq!(time(Timestamp(1_000_000_000_000)), "2001-09-09 01:46:40Z");
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = [vec!["äpp".to_owned(), "1".to_owned()], vec!["b".to_owned(), "22".to_owned()]];
        assert_eq!(table(&["KEY", "N"], &rows, " "), " KEY  N\n äpp  1\n b    22\n");
    }
}
