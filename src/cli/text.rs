//! How numbers, sizes, times and tables look.

use terminal_size::{Width, terminal_size};

use crate::model::Timestamp;

/// Lines are never wider.
pub(crate) const MAX_WIDTH: usize = 120;

/// `38.2 GiB`; whole bytes below one KiB.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `18 204`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `2 snapshots`, `1 snapshot`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// `2026-12-01 21:04Z`.
pub(crate) fn minute(time: Timestamp) -> String {
    let text = time.show();
    match text.rsplit_once(':') {
        Some((minute, _)) => format!("{minute}Z"),
        None => text,
    }
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) is_right: bool,
    /// Columns with the largest number are dropped first where the table does not fit; 0 never.
    pub(crate) drop: u8,
}

/// A left-aligned column.
pub(crate) const fn left(title: &'static str, drop: u8) -> Column {
    Column { title, is_right: false, drop }
}

/// A right-aligned column.
pub(crate) const fn right(title: &'static str, drop: u8) -> Column {
    Column { title, is_right: true, drop }
}

/// Lines of a table: it drops columns rather than wrap.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>]) -> Vec<String> {
    let width = terminal_size().map_or(MAX_WIDTH, |(Width(width), _)| usize::from(width)).min(MAX_WIDTH);
    layout(columns, rows, width)
}

fn layout(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let wide = |text: &str| text.chars().count();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| rows.iter().map(|row| wide(&row[at])).chain([wide(column.title)]).max().unwrap_or(0))
        .collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    while shown.iter().map(|at| widths[*at] + 2).sum::<usize>() > width + 2 {
        let Some(worst) = shown.iter().copied().filter(|at| columns[*at].drop > 0).max_by_key(|at| columns[*at].drop)
        else {
            break;
        };
        shown.retain(|at| *at != worst);
    }
    let draw = |cells: &dyn Fn(usize) -> String| {
        let cells = shown.iter().map(|at| {
            let (text, pad) = (cells(*at), widths[*at]);
            let fill = " ".repeat(pad.saturating_sub(wide(&text)));
            if columns[*at].is_right { format!("{fill}{text}") } else { format!("{text}{fill}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![draw(&|at| columns[at].title.to_owned())];
    lines.extend(rows.iter().map(|row| draw(&|at| row[at].clone())));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_counts_have_spaces() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (41_000_000_000, "38.2 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
        assert_eq!(
            (count(0), count(999), count(18_204), count(1_234_567)),
            ("0".into(), "999".into(), "18 204".into(), "1 234 567".into())
        );
        assert_eq!((counted(1, "ref"), counted(2, "ref")), ("1 ref".into(), "2 refs".into()));
    }

    #[test]
    fn a_table_that_does_not_fit_drops_columns_and_never_wraps() {
        let columns = [left("NAME", 0), right("AGE", 1), left("NOTE", 2)];
        let rows = vec![vec!["pr_1".to_owned(), "9d".to_owned(), "forked long ago".to_owned()]];
        assert_eq!(layout(&columns, &rows, 40), ["NAME  AGE  NOTE", "pr_1   9d  forked long ago"]);
        assert_eq!(layout(&columns, &rows, 12), ["NAME  AGE", "pr_1   9d"]);
        assert_eq!(layout(&columns, &rows, 3), ["NAME", "pr_1"]);
    }
}
