//! `check`: what works and what is allowed, a line for each thing.

use anstyle::{AnsiColor, Reset, Style};

use super::print;
use super::text::{MAX_WIDTH, counted};
use crate::check::{About, CheckItem, CheckRequest, Status, offline, online};
use crate::config::{Config, Problem};

/// Columns for what a line is about, at most; a longer name pushes its text to the right.
const ABOUT: usize = 34;

/// Checks the configuration and, unless `is_offline`, all that it names. Returns the exit code.
pub(super) async fn command(
    config: &Config,
    warnings: &[Problem],
    is_offline: bool,
    request: CheckRequest,
    json: bool,
) -> u8 {
    let items = if is_offline { offline(config, warnings) } else { online(config, warnings, request).await };
    if json {
        items.iter().for_each(print::json);
    } else {
        let widths = items.iter().map(|item| about(item).chars().count());
        let column = widths.filter(|width| *width <= ABOUT).max().unwrap_or(ABOUT);
        items.iter().flat_map(|item| lines(item, column)).for_each(print::line);
        print::line(summary(&items));
    }
    u8::from(items.iter().any(|item| item.status == Status::Fail))
}

fn lines(item: &CheckItem, column: usize) -> Vec<String> {
    let (word, style) = match item.status {
        Status::Ok => ("ok", AnsiColor::Green.on_default()),
        Status::Warn => ("warn", AnsiColor::Yellow.on_default()),
        Status::Fail => ("FAIL", AnsiColor::Red.on_default().bold()),
    };
    let about = about(item);
    let took = match item.took_ms {
        // The line of a catalog tells its times itself.
        Some(ms) if item.about != About::Catalog => format!(" ({ms} ms)"),
        _ => String::new(),
    };
    let left = 4 + 2 + column + 2;
    let push = about.chars().count().saturating_sub(column);
    let said = wrapped(&format!("{}{took}", item.text), push, MAX_WIDTH.saturating_sub(left));
    let advice = item.advice.iter().flat_map(|advice| wrapped(&format!("→ {advice}"), 0, MAX_WIDTH - left));
    let mut lines: Vec<String> = said.into_iter().chain(advice).map(|line| format!("{:left$}{line}", "")).collect();
    if let Some(first) = lines.first_mut() {
        *first = format!("{}  {about:<column$}  {}", painted(word, style), first.trim_start());
    }
    lines
}

/// The text in lines of at most `width`, the first shorter by `push`; a longer word has a line of its own.
fn wrapped(text: &str, push: usize, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = push;
    // A cause may be a text of several lines.
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if line.is_empty() => {
                line.push_str(word);
                used += length;
            }
            Some(line) if used + 1 + length <= width => {
                line.push(' ');
                line.push_str(word);
                used += 1 + length;
            }
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

fn about(item: &CheckItem) -> String {
    let word = item.about.as_str();
    if item.name.is_empty() { word.to_owned() } else { format!("{word} {}", item.name) }
}

/// The word, of four columns, in its colour.
fn painted(word: &str, style: Style) -> String {
    let pad = " ".repeat(4_usize.saturating_sub(word.len()));
    format!("{style}{word}{Reset}{pad}")
}

fn summary(items: &[CheckItem]) -> String {
    let of = |status: Status| items.iter().filter(|item| item.status == status).count() as u64;
    match (of(Status::Fail), of(Status::Warn)) {
        (0, 0) => "all of it works".to_owned(),
        (0, warnings) => format!("all of it works, {}", counted(warnings, "warning")),
        (1, warnings) => format!("1 thing does not work, {}", counted(warnings, "warning")),
        (failed, warnings) => format!("{} do not work, {}", counted(failed, "thing"), counted(warnings, "warning")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_wrapped_at_words_within_its_column() {
        assert_eq!(wrapped("one two three", 0, 20), ["one two three"]);
        assert_eq!(wrapped("one two\n  three", 0, 8), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 5, 9), ["one", "two three"]);
        assert_eq!(wrapped("s3://a/very/long/location is gone", 0, 8), ["s3://a/very/long/location", "is gone"]);
        assert_eq!(wrapped("", 0, 8), [""]);
    }

    #[test]
    fn the_last_line_counts_what_does_not_work() {
        let of = |status: Status| CheckItem {
            about: About::State,
            name: String::new(),
            status,
            text: String::new(),
            advice: None,
            took_ms: None,
            counts: std::collections::BTreeMap::new(),
        };
        for (all, text) in [
            (vec![Status::Ok], "all of it works"),
            (vec![Status::Ok, Status::Warn], "all of it works, 1 warning"),
            (vec![Status::Fail], "1 thing does not work, 0 warnings"),
            (vec![Status::Fail, Status::Fail, Status::Warn], "2 things do not work, 1 warning"),
        ] {
            assert_eq!(summary(&all.into_iter().map(of).collect::<Vec<_>>()), text);
        }
    }
}
