//! `refs`: branches and tags with their retention, as the next expiry would judge them.

use schemars::JsonSchema;
use serde::Serialize;

use super::print;
use super::text::{counted, left, right, table};
use crate::config::Pattern;
use crate::model::{Age, RefKind, RefName, Retention, SnapshotId, TableName};
use crate::plan::RefVerdict;
use crate::report::{Job, TableReport};
use crate::run::{Lake, RunError, RunRequest, run};

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line<'a> {
    table: &'a TableName,
    name: &'a RefName,
    kind: RefKind,
    snapshot: SnapshotId,
    age: Option<Age>,
    retention: Retention,
    next_expiry: &'static str,
}

/// Lists the refs of the tables that match.
pub(super) async fn list(lake: &Lake, patterns: &[Pattern], json: bool) -> Result<u8, RunError> {
    let request = RunRequest { tables: patterns.to_vec(), ..RunRequest::look(Job::Expire, super::actor()) };
    let report = run(lake, &request).await?;
    let now = report.now;
    let mut code = 0;
    for of_table in &report.tables {
        let Some(catalog) = lake.catalog(&of_table.table.catalog) else { continue };
        let loaded = match catalog.load(&of_table.table).await {
            Ok(loaded) => loaded,
            Err(error) => {
                print::error(&error);
                code = 4;
                continue;
            }
        };
        let state = &loaded.state;
        let of_kind = |kind| state.refs.values().filter(|r| r.kind == kind).count() as u64;
        let lines: Vec<Line<'_>> = state
            .refs
            .iter()
            .map(|(name, r)| Line {
                table: &of_table.table,
                name,
                kind: r.kind,
                snapshot: r.snapshot,
                age: state.snapshots.iter().find(|s| s.id == r.snapshot).map(|s| now.since(s.at)),
                retention: r.retention,
                next_expiry: next_expiry(of_table, name),
            })
            .collect();
        if json {
            lines.iter().for_each(print::json);
            continue;
        }
        let tags = of_kind(RefKind::Tag);
        let branches = of_kind(RefKind::Branch);
        let plural = if branches == 1 { "branch" } else { "branches" };
        print::line(format!("{}   {branches} {plural}, {}", of_table.table, counted(tags, "tag")));
        let columns = [
            left("REF", 0),
            left("KIND", 0),
            right("HEAD", 2),
            right("AGE", 0),
            right("RETAIN", 0),
            right("KEEPS", 1),
            left("NEXT EXPIRY", 1),
        ];
        let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
        table(&columns, &rows).iter().for_each(print::line);
        print::line("");
    }
    Ok(code)
}

fn row(line: &Line<'_>) -> Vec<String> {
    let span = |ms: Option<i64>| ms.map_or_else(|| "–".to_owned(), |ms| Age(ms).show());
    let keeps = match (line.retention.min_snapshots_to_keep, line.retention.max_snapshot_age_ms) {
        (None, None) => "–".to_owned(),
        (Some(count), None) => count.to_string(),
        (None, Some(ms)) => Age(ms).show(),
        (Some(count), Some(ms)) => format!("{count} / {}", Age(ms).show()),
    };
    vec![
        line.name.to_string(),
        line.kind.as_str().to_owned(),
        line.snapshot.to_string(),
        line.age.map_or_else(|| "?".to_owned(), Age::show),
        span(line.retention.max_ref_age_ms),
        keeps,
        line.next_expiry.to_owned(),
    ]
}

fn next_expiry(report: &TableReport, name: &RefName) -> &'static str {
    let Some(plan) = &report.plan else { return "keeps" };
    let verdict = plan.refs.iter().find(|decision| decision.name == *name).map(|decision| &decision.verdict);
    if verdict.is_some_and(RefVerdict::drops) { "drops" } else { "keeps" }
}
