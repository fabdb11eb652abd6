//! `branch`: the branches of tables, and what an operator does with one.

use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;

use super::text::{count, counted, left, minute, right, table as laid_out};
use super::{Selection, print};
use crate::config::Pattern;
use crate::model::{Age, RefKind, RefName, Retention, TableName, Timestamp};
use crate::plan::change::Wanted;
use crate::plan::{RefVerdict, Source};
use crate::report::{Outcome, RunReport, quoted};
use crate::run::branch::{BranchRequest, run};
use crate::run::branches::{Branch, Gone, TableBranches, branches};
use crate::run::{Lake, RunError};

/// `branch`.
#[derive(Debug, Subcommand)]
pub enum BranchAction {
    /// List the branches of tables, and those that can be restored
    List(Selection),
    /// Tell what is known of a branch, and how to read it
    Inspect {
        /// The table, or a pattern
        table: String,
        /// The branch
        name: String,
    },
    /// Drop a branch: its snapshots stay for a day, and it can be restored
    Drop {
        /// The table, or a pattern
        table: String,
        /// The branch
        name: String,
        /// Do it
        #[arg(long)]
        apply: bool,
    },
    /// Set the retention of a branch; what is not given stays as it is
    #[command(group = clap::ArgGroup::new("settings").required(true).multiple(true))]
    Retain {
        /// The table, or a pattern
        table: String,
        /// The branch
        name: String,
        /// It goes when its head is older
        #[arg(long, value_name = "AGE", group = "settings")]
        max_age: Option<Age>,
        /// It keeps this many of its newest snapshots
        #[arg(long, value_name = "N", group = "settings", value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
        keep: Option<u32>,
        /// It keeps snapshots that are not older
        #[arg(long, value_name = "AGE", group = "settings")]
        snapshots_for: Option<Age>,
        /// Do it
        #[arg(long)]
        apply: bool,
    },
    /// Set a dropped branch again, where it was, with the retention that it had
    Restore {
        /// The table, or a pattern
        table: String,
        /// The branch
        name: String,
        /// Under this name
        #[arg(long = "as", value_name = "NAME")]
        new_name: Option<String>,
        /// Do it
        #[arg(long)]
        apply: bool,
    },
}

/// Does what was asked for.
pub(super) async fn command(lake: &Lake, action: BranchAction, json: bool) -> Result<u8, RunError> {
    let (table, name, wanted, apply) = match action {
        BranchAction::List(selection) => return list(lake, &selection.patterns(), json).await,
        BranchAction::Inspect { table, name } => return inspect(lake, &table, &name, json).await,
        BranchAction::Drop { table, name, apply } => (table, name, Wanted::Drop, apply),
        BranchAction::Retain { table, name, max_age, keep, snapshots_for, apply } => {
            let retention = Retention {
                min_snapshots_to_keep: keep.map(i64::from),
                max_snapshot_age_ms: snapshots_for.map(|age| age.0),
                max_ref_age_ms: max_age.map(|age| age.0),
            };
            (table, name, Wanted::Retain(retention), apply)
        }
        BranchAction::Restore { table, name, new_name, apply } => {
            (table, name, Wanted::Restore(new_name.map(RefName::new)), apply)
        }
    };
    let name = RefName::new(name);
    let request =
        BranchRequest { tables: vec![Pattern::new(table.as_str())], name, wanted, apply, actor: super::actor() };
    let report = run(lake, &request).await?;
    if json {
        print::json(&report);
    } else {
        lines(lake, &report, &request, &table).iter().for_each(print::line);
    }
    Ok(report.exit_code())
}

fn lines(lake: &Lake, report: &RunReport, request: &BranchRequest, table: &str) -> Vec<String> {
    let until = minute(report.now.plus(lake.hands.config.expire.drop_grace));
    let mut lines = Vec::new();
    for of_table in &report.tables {
        let name = &of_table.table;
        if of_table.outcome != Outcome::Done {
            let reason = of_table.reason.as_deref().unwrap_or("no reason was given");
            lines.push(format!("{:<8} {name}: {reason}", of_table.outcome.as_str()));
            continue;
        }
        for changed in of_table.change.iter().flat_map(|change| &change.refs) {
            let (would, did) = match request.wanted {
                Wanted::Drop => ("would drop", "dropped"),
                Wanted::Restore(_) => ("would restore", "restored"),
                Wanted::Retain(_) | Wanted::SetRetention => ("would set the retention of", "set the retention of"),
            };
            let verb = if report.applied { did } else { would };
            let what = match (&changed.before, &changed.after) {
                (Some(before), None) => format!("at snapshot {}, can be restored until {until}", before.snapshot),
                (None, Some(after)) => format!("at snapshot {}, {}", after.snapshot, after.retention),
                (_, Some(after)) => after.retention.to_string(),
                (None, None) => String::new(),
            };
            lines.push(format!("{name}: {verb} {}   {what}", changed.name));
        }
    }
    lines.extend(report.unlisted.iter().map(|error| format!("failed   {error}; its tables were left as they are")));
    lines.extend(report.notes.iter().cloned());
    let acts = report.tables.iter().any(|table| table.outcome == Outcome::Done && table.change.is_some());
    if !report.applied && acts {
        lines.push(format!("nothing was changed; to go on: {}", go_on(request, table)));
    }
    lines
}

/// What to type to do what was shown.
fn go_on(request: &BranchRequest, table: &str) -> String {
    let rest = match &request.wanted {
        Wanted::Drop | Wanted::SetRetention => String::new(),
        Wanted::Restore(new_name) => {
            new_name.as_ref().map_or_else(String::new, |name| format!(" --as {}", quoted(name.as_str())))
        }
        Wanted::Retain(retention) => {
            let age = |key: &str, ms: Option<i64>| ms.map(|ms| format!(" --{key} {}", Age(ms)));
            let keep = retention.min_snapshots_to_keep.map(|count| format!(" --keep {count}"));
            [age("max-age", retention.max_ref_age_ms), keep, age("snapshots-for", retention.max_snapshot_age_ms)]
                .into_iter()
                .flatten()
                .collect()
        }
    };
    let (verb, name) = (request.wanted.as_str(), quoted(request.name.as_str()));
    format!("icewarden branch {verb} {} {name}{rest} --apply", quoted(table))
}

/// A branch, as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Line<'a> {
    /// One that is there.
    Branch(OfTable<'a, Branch>),
    /// One that is gone, and can be restored.
    Gone(OfTable<'a, Gone>),
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OfTable<'a, T> {
    table: &'a TableName,
    #[serde(flatten)]
    branch: &'a T,
}

async fn list(lake: &Lake, patterns: &[Pattern], json: bool) -> Result<u8, RunError> {
    let (all, failed) = branches(lake, patterns, &super::actor()).await?;
    let mut without = 0;
    for of_table in &all {
        if of_table.branches.is_empty() && of_table.dropped.is_empty() {
            without += 1;
            continue;
        }
        let (table, branches) = (&of_table.table, &of_table.branches);
        if json {
            for branch in branches {
                print::json(&Line::Branch(OfTable { table, branch }));
            }
            for branch in &of_table.dropped {
                print::json(&Line::Gone(OfTable { table, branch }));
            }
        } else {
            listed(of_table);
        }
    }
    if without > 0 && !json {
        print::line(format!("{} with no branch beside main", counted(without, "table")));
    }
    for error in &failed {
        print::error(error);
    }
    Ok(if failed.is_empty() { 0 } else { 4 })
}

fn listed(of_table: &TableBranches) {
    let TableBranches { table: name, now, branches, dropped } = of_table;
    let plural = if branches.len() == 1 { "branch" } else { "branches" };
    print::line(format!("{name}   {} {plural} beside main", count(branches.len() as u64)));
    if !branches.is_empty() {
        let columns = [
            left("BRANCH", 0),
            right("HEAD", 4),
            right("AGE", 0),
            right("CREATED", 2),
            left("LIVES", 0),
            left("POLICY", 1),
            left("BEHIND MAIN", 3),
            left("NEXT EXPIRY", 0),
        ];
        let rows: Vec<Vec<String>> = branches.iter().map(|branch| row(branch, *now)).collect();
        laid_out(&columns, &rows).iter().for_each(print::line);
    }
    for gone in dropped {
        print::line(gone_text(gone, *now));
    }
    print::line("");
}

fn gone_text(gone: &Gone, now: Timestamp) -> String {
    let what = if gone.kind == RefKind::Tag { "tag, " } else { "" };
    let (name, at) = (&gone.name, minute(gone.dropped_at));
    match (&gone.by, gone.kept_until) {
        (Some(by), Some(until)) if now < until => {
            format!("{name}   {what}dropped {at} by {by}, can be restored until {}", minute(until))
        }
        _ => format!("{name}   {what}gone since {at}, can be restored while its snapshots are there"),
    }
}

fn row(branch: &Branch, now: Timestamp) -> Vec<String> {
    let limit = branch.values.max_age.as_ref().or(branch.values.max_lifetime.as_ref());
    let behind = match (branch.behind_main, branch.forked_at) {
        (Some(0), _) => "not at all".to_owned(),
        (Some(commits), Some(at)) => format!("{}, {}", counted(commits, "commit"), now.since(at).show()),
        // What lies between was expired.
        (None, Some(at)) => now.since(at).show(),
        _ => "?".to_owned(),
    };
    let policy = match limit.map(|limit| &limit.source) {
        Some(Source::Rule { rule, .. }) => rule.clone(),
        Some(source) => source.to_string(),
        None => "–".to_owned(),
    };
    vec![
        branch.name.to_string(),
        branch.head.to_string(),
        branch.head_at.map_or_else(|| "?".to_owned(), |at| now.since(at).show()),
        now.since(branch.created).show(),
        limit.map_or_else(|| "for ever".to_owned(), |limit| limit.value.show()),
        policy,
        behind,
        if branch.verdict.drops() { "drops".to_owned() } else { "keeps".to_owned() },
    ]
}

async fn inspect(lake: &Lake, pattern: &str, name: &str, json: bool) -> Result<u8, RunError> {
    let (all, failed) = branches(lake, &[Pattern::new(pattern)], &super::actor()).await?;
    let mut met = false;
    for of_table in &all {
        let table = &of_table.table;
        for branch in of_table.branches.iter().filter(|branch| branch.name.as_str() == name) {
            met = true;
            if json {
                print::json(&Line::Branch(OfTable { table, branch }));
            } else {
                inspected(table, branch, of_table.now).iter().for_each(print::line);
            }
        }
        for gone in of_table.dropped.iter().filter(|gone| gone.name.as_str() == name) {
            met = true;
            if json {
                print::json(&Line::Gone(OfTable { table, branch: gone }));
            } else {
                print::line(format!("{table}: {}", gone_text(gone, of_table.now)));
                let (table, name) = (quoted(&table.to_string()), quoted(name));
                print::line(format!("  restore it   icewarden branch restore {table} {name} --apply"));
            }
        }
    }
    for error in &failed {
        print::error(error);
    }
    if !met && failed.is_empty() {
        return Err(RunError::Rejected(format!(
            "no table that matches has a branch {name} (hint: icewarden branch list)"
        )));
    }
    Ok(if failed.is_empty() { 0 } else { 4 })
}

fn inspected(table: &TableName, branch: &Branch, now: Timestamp) -> Vec<String> {
    let ago = |at: Timestamp| format!("{} ({} ago)", minute(at), now.since(at).show());
    let sourced = |value: Option<String>, source: Option<&Source>| {
        let source = source.map_or_else(String::new, |source| format!(" ({source})"));
        value.map_or_else(|| "for ever".to_owned(), |value| value + &source)
    };
    let values = &branch.values;
    let age = values.max_age.as_ref();
    let mut lines = vec![
        format!("{table} branch {}", branch.name),
        format!(
            "  head         {}, {}",
            branch.head,
            branch.head_at.map_or_else(|| "not in the table".to_owned(), ago)
        ),
        format!("  created      {} or before", ago(branch.created)),
        format!("  snapshots    {} on it alone", count(branch.snapshots)),
    ];
    if let Some(base) = branch.fork_point {
        let at = branch
            .forked_at
            .map_or_else(|| ", which the table no longer has".to_owned(), |at| format!(", {}", ago(at)));
        lines.push(format!("  left main    at {base}{at}"));
    }
    if let Some(commits) = branch.behind_main {
        lines.push(format!("  behind main  {}", counted(commits, "commit")));
    }
    lines.push(format!(
        "  lives        {}",
        sourced(age.map(|limit| limit.value.show()), age.map(|limit| &limit.source))
    ));
    if let Some(limit) = &values.max_lifetime {
        lines.push(format!("  lifetime     {} since it was created ({})", limit.value.show(), limit.source));
    }
    if let (Some(last), Some(older)) = (&values.retain_last, &values.older_than) {
        let (last, by) = (format!("{} newest ({})", last.value, last.source), format!("({})", older.source));
        lines.push(format!("  keeps        {last} and what is younger than {} {by}", older.value.show()));
    }
    lines.push(format!("  next expiry  {}", next(&branch.verdict)));
    let (spark, name) = (table.full(), branch.name.as_str());
    let plain = quoted(&table.to_string());
    lines.extend([
        format!("  read it      spark: SELECT * FROM {spark} VERSION AS OF '{}'", name.replace('\'', "\\'")),
        format!("               trino: SELECT * FROM {spark} FOR VERSION AS OF '{}'", name.replace('\'', "''")),
        format!("               flink: SELECT * FROM {spark} /*+ OPTIONS('branch'='{}') */", name.replace('\'', "''")),
        format!("  drop it      icewarden branch drop {plain} {} --apply", quoted(name)),
    ]);
    if age.is_some() {
        lines.push(format!("  keep it      icewarden branch retain {plain} {} --max-age AGE --apply", quoted(name)));
    }
    lines
}

fn next(verdict: &RefVerdict) -> String {
    match verdict {
        RefVerdict::DropAged { age, limit } => {
            format!("drops it: head {} old, allowed {}", age.show(), limit.value.show())
        }
        RefVerdict::DropOutlived { created, limit } => {
            format!("drops it: created {} ago, allowed {}", created.show(), limit.value.show())
        }
        RefVerdict::DropDangling => "drops it: it points at nothing".to_owned(),
        RefVerdict::KeepProtected { policy, rule, .. } => format!("keeps it: policy {policy} protects {rule}"),
        RefVerdict::KeepNew { age, created, .. } => {
            format!("keeps it: head {} old, but created {} ago", age.show(), created.show())
        }
        RefVerdict::KeepYoung { age, limit } => {
            format!("keeps it: head {} old, allowed {}", age.show(), limit.value.show())
        }
        RefVerdict::KeepAlive { created, limit } => {
            format!("keeps it: created {} ago, allowed {}", created.show(), limit.value.show())
        }
        RefVerdict::KeepMain | RefVerdict::KeepNoAge => "keeps it: nothing gives it an age".to_owned(),
    }
}
