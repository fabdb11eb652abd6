//! `demo`: tells its steps in words, with the output of the commands that would do the same.

use std::collections::BTreeMap;
use std::path::Path;

use super::text::{count, counted, left, right, size, table};
use super::{BAD_USAGE, print, work};
use crate::clock::Clock;
use crate::demo::read_back::ReadBack;
use crate::demo::{self, DemoArgs, DemoError, Step, Usage};
use crate::report::RunReport;
use crate::run::RunRequest;

/// Runs the demo and tells what it does; returns the exit code.
pub(super) async fn command(folder: &Path, fresh: bool) -> u8 {
    let args = DemoArgs { folder: folder.to_owned(), fresh };
    let config = folder.join(demo::lake::CONFIG).display().to_string();
    match demo::run(&args, Clock::System, |step| tell(&step, &config)).await {
        Ok(report) => {
            print::line(format!("every other command works on it too: icewarden --config {config} refs"));
            if report.applied.tables.iter().all(|table| table.counts.commits == 0) {
                print::line("to make the lake anew: icewarden demo --fresh");
            }
            report.exit_code()
        }
        Err(error) => {
            print::error(&error);
            match error {
                DemoError::NotADemo { .. } | DemoError::NotUnicode { .. } | DemoError::Config(_) => BAD_USAGE,
                _ => 1,
            }
        }
    }
}

fn tell(step: &Step<'_>, config: &str) {
    let lines = match step {
        Step::Made(lake) => {
            let tables = counted(lake.tables.len() as u64, "table");
            vec![format!("made a lake of {tables}, as it would be after 60 days, in {}", lake.folder.display())]
        }
        Step::Found(lake) => vec![format!("there is a lake in {}", lake.folder.display())],
        Step::Planned(report) => {
            let mut lines = shown(report, "plan expire", config, "");
            // The next step goes on.
            lines.retain(|line| !line.starts_with("nothing was changed"));
            lines
        }
        Step::Applied(report) => {
            let grace = "(grace is 0s in this lake: what is marked is deleted at once; the default is 24h)";
            shown(report, "run expire --apply", config, grace)
        }
        // An earlier demo that was stopped left marks.
        Step::Swept(report) if !report.tables.is_empty() => shown(report, "run sweep --apply", config, ""),
        Step::Swept(_) => Vec::new(),
        Step::Stored { before, after } => storage(before, after),
        Step::ReadBack(read) => read_back(read),
    };
    if !lines.is_empty() {
        lines.into_iter().for_each(print::line);
        print::line("");
    }
}

/// A run as its command would print it, below what would have to be typed.
fn shown(report: &RunReport, typed: &str, config: &str, remark: &str) -> Vec<String> {
    let request = RunRequest { apply: report.applied, ..RunRequest::look(report.job, "") };
    let mut lines = vec![format!("$ icewarden --config {config} {typed}")];
    if !remark.is_empty() {
        lines.push(remark.to_owned());
    }
    lines.extend(work::lines(report, &request));
    lines
}

fn storage(before: &BTreeMap<String, Usage>, after: &BTreeMap<String, Usage>) -> Vec<String> {
    let columns = [
        left("STORAGE", 0),
        right("FILES BEFORE", 2),
        right("AFTER", 2),
        right("BYTES BEFORE", 0),
        right("AFTER", 0),
        right("FREED", 1),
    ];
    let row = |name: &str, before: Usage, after: Usage| {
        let freed = before.bytes.saturating_sub(after.bytes);
        vec![
            name.to_owned(),
            count(before.files),
            count(after.files),
            size(before.bytes),
            size(after.bytes),
            if freed == 0 { "–".to_owned() } else { size(freed) },
        ]
    };
    let of = |usages: &BTreeMap<String, Usage>, name: &str| usages.get(name).copied().unwrap_or_default();
    let sum = |usages: &BTreeMap<String, Usage>| Usage {
        files: usages.values().map(|usage| usage.files).sum(),
        bytes: usages.values().map(|usage| usage.bytes).sum(),
    };
    let mut rows: Vec<_> = before.keys().map(|name| row(name, of(before, name), of(after, name))).collect();
    rows.push(row("all", sum(before), sum(after)));
    table(&columns, &rows)
}

fn read_back(read: &BTreeMap<String, ReadBack>) -> Vec<String> {
    let sum = |of: fn(&ReadBack) -> u64| read.values().map(of).sum::<u64>();
    vec![format!(
        "read back {} of {}: {}, {}, {}; nothing that they need is missing or broken",
        counted(sum(|read| read.snapshots), "snapshot"),
        counted(read.len() as u64, "table"),
        counted(sum(|read| read.files), "file"),
        counted(sum(|read| read.rows), "row"),
        size(sum(|read| read.bytes)),
    )]
}
