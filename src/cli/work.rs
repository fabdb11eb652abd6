//! `plan` and `run`: the report of a run as text.

use std::fmt::Write;

use super::print;
use super::text::{MAX_WIDTH, count, counted, minute, size};
use crate::model::{Age, RefKind, RefName};
use crate::plan::{ExpiredBecause, KeptFile, RefDecision, RefVerdict, SnapshotVerdict, Source};
use crate::report::{Because, Job, Outcome, PlanReport, RunReport, SweepReport, TableReport, quoted};
use crate::run::{Lake, RunError, RunRequest, run};

/// Refs and reasons that a plan shows by name, before it only counts.
const SHOWN: usize = 12;

/// Runs what was asked for and prints what became of it.
pub(super) async fn run_and_print(lake: &Lake, request: &RunRequest, json: bool) -> Result<u8, RunError> {
    let progress = super::progress::start(lake, request.job);
    let report = run(lake, request).await;
    progress.end();
    let report = report?;
    if json {
        print::json(&report);
    } else {
        for line in lines(&report, request) {
            print::line(line);
        }
    }
    Ok(report.exit_code())
}

/// The report as text: each table that something is to be said about, then one line for the others.
pub(crate) fn lines(report: &RunReport, request: &RunRequest) -> Vec<String> {
    let mut lines = Vec::new();
    let mut quiet = 0_u64;
    for table in &report.tables {
        let has_nothing = table.outcome == Outcome::Done
            && table.plan.as_ref().is_none_or(|plan| report.applied && plan.is_empty())
            && table.orphans.as_ref().is_none_or(|plan| plan.orphans().objects == 0 && plan.kept.is_empty())
            && table.notes.is_empty()
            && table.commits.is_empty()
            && table.marks.is_empty()
            && table.sweeps.is_empty();
        if has_nothing {
            quiet += 1;
            continue;
        }
        of_table(table, report, &mut lines);
    }
    if quiet > 0 {
        lines.push(match report.tables.len() as u64 {
            1 => format!("{}: nothing to do", report.tables[0].table),
            all if all == quiet => format!("{}: nothing to do", counted(all, "table")),
            _ => format!("{}: nothing to do", counted(quiet, "other table")),
        });
    }
    if report.job == Job::Sweep && report.tables.is_empty() {
        lines.push("no marks are due".to_owned());
    }
    super::orphans::dropped(report, &mut lines);
    lines.extend(report.unlisted.iter().map(|error| format!("failed   {error}; its tables were left as they are")));
    lines.extend(report.notes.iter().cloned());
    let acts = report.tables.iter().any(|table| {
        table.outcome <= Outcome::Partial
            && (table.plan.as_ref().is_some_and(|plan| !plan.is_empty())
                || table.orphans.as_ref().is_some_and(|plan| plan.orphans().objects > 0)
                || table.sweeps.iter().any(|sweep| sweep.would_delete > 0))
    });
    if !report.applied && acts {
        lines.push(format!("nothing was changed; to go on: {}", command(request)));
    }
    lines
}

/// What to type to do what was shown.
fn command(request: &RunRequest) -> String {
    let mut text = format!("icewarden run {}", request.job.as_str());
    for pattern in &request.tables {
        let _ = write!(text, " --table {}", quoted(pattern.as_str()));
    }
    if let Some(age) = request.older_than {
        let _ = write!(text, " --older-than {age}");
    }
    if let Some(root) = &request.root {
        let _ = write!(text, " --root {}", quoted(root));
    }
    if let Some(last) = request.retain_last {
        let _ = write!(text, " --retain-last {last}");
    }
    for id in &request.snapshots {
        let _ = write!(text, " --snapshot {id}");
    }
    text.push_str(" --apply");
    text
}

fn of_table(table: &TableReport, report: &RunReport, lines: &mut Vec<String>) {
    let name = &table.table;
    if let Some(plan) = &table.plan
        && !report.applied
    {
        of_plan(table, plan, report, lines);
    }
    if let Some(plan) = &table.orphans
        && (!report.applied || table.outcome == Outcome::Refused)
    {
        super::orphans::plan(table, plan, report.now, lines);
    }
    lines.extend(table.notes.iter().map(|note| format!("{name}: {note}")));
    for commit in &table.commits {
        let file = commit.metadata_location.rsplit('/').next().unwrap_or_default();
        let refs = if commit.refs.is_empty() {
            String::new()
        } else {
            format!(", {}", counted(commit.refs.len() as u64, "ref"))
        };
        let set = if commit.set.is_empty() {
            String::new()
        } else {
            let names: Vec<&str> = commit.set.iter().take(SHOWN).map(RefName::as_str).collect();
            let more = commit.set.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("retention of {}{more}", names.join(", "))
        };
        let removed = counted(commit.snapshots, "snapshot") + &refs;
        let what = if commit.set.is_empty() { removed } else { set };
        lines.push(format!("{name}: committed {what} (metadata {file})"));
    }
    for marks in &table.marks {
        let when = if marks.grace == Age::ZERO {
            "grace 0".to_owned()
        } else {
            format!("deleted not before {} (grace {})", minute(marks.due_at), marks.grace)
        };
        let files = counted(marks.objects, "file");
        lines.push(format!("{name}: {files} marked, {}, {when}, list {}", size(marks.bytes), marks.id));
    }
    for sweep in &table.sweeps {
        of_sweep(table, sweep, report.applied, lines);
    }
    if table.outcome != Outcome::Done {
        let word = table.outcome.as_str();
        let reason = table.reason.as_deref().unwrap_or("no reason was given");
        lines.push(format!("{word:<8} {name}: {reason}"));
        if table.outcome == Outcome::Failed && table.is_untouched {
            lines.push(format!("         {name} was left as it is"));
        }
        if let Some(advice) = &table.advice {
            lines.push(format!("         go on   {advice}"));
        }
    }
}

fn of_plan(table: &TableReport, plan: &PlanReport, report: &RunReport, lines: &mut Vec<String>) {
    let older = &plan.older_than;
    let keep = &plan.retain_last;
    let source = if older.source == keep.source {
        format!("older than {}, keep {} ({})", older.value.show(), keep.value, older.source)
    } else {
        format!("older than {} ({}), keep {} ({})", older.value.show(), older.source, keep.value, keep.source)
    };
    let head = format!("plan {} for {} at {}", plan.id, table.table, report.now.show());
    if head.chars().count() + source.chars().count() + 3 <= MAX_WIDTH {
        lines.push(format!("{head}   {source}"));
    } else {
        lines.extend([head, format!("  {source}")]);
    }

    let dropped: Vec<&RefDecision> = plan.refs.iter().filter(|decision| decision.verdict.drops()).collect();
    if !dropped.is_empty() {
        let mut lead = format!("refs        drop {} of {}", dropped.len(), plan.refs.len());
        for decision in dropped.iter().take(SHOWN) {
            lines.push(format!("  {lead:<28} {:<12} {}", decision.name.as_str(), ref_text(decision, plan)));
            lead = String::new();
        }
        if dropped.len() > SHOWN {
            lines.push(format!("  {:<28} and {} more", "", dropped.len() - SHOWN));
        }
    }
    let spared: Vec<&RefDecision> = plan.refs.iter().filter(|decision| decision.verdict.is_spared()).collect();
    let mut lead = if dropped.is_empty() {
        format!("refs        keep {} for now", spared.len())
    } else {
        format!("            keep {} for now", spared.len())
    };
    for decision in spared.iter().take(SHOWN) {
        lines.push(format!("  {lead:<28} {:<12} {}", decision.name.as_str(), ref_text(decision, plan)));
        lead = String::new();
    }
    if spared.len() > SHOWN {
        lines.push(format!("  {:<28} and {} more", "", spared.len() - SHOWN));
    }
    let mut lead = format!("retention   set on {}", plan.to_set.len());
    for (name, to) in plan.to_set.iter().take(SHOWN) {
        lines.push(format!("  {lead:<28} {:<12} {}", name.as_str(), to.retention));
        lead = String::new();
    }
    if plan.to_set.len() > SHOWN {
        lines.push(format!("  {:<28} and {} more", "", plan.to_set.len() - SHOWN));
    }
    let kept: u64 = plan.kept_by.iter().map(|(_, count)| count).sum();
    if !plan.expired.is_empty() {
        let gone = plan.expired.len() as u64;
        let lead = format!("snapshots   expire {} of {}", count(gone), count(gone + kept));
        spread(&lead, plan.expired_by.iter().map(|(because, n)| expired_text(because, *n)), lines);
        let lead = format!("            keep {}", count(kept));
        spread(&lead, kept_texts(plan).into_iter(), lines);
    }
    for id in &plan.unknown {
        lines.push(format!("  {:<28} snapshot {id} was named, but the table has no such snapshot", ""));
    }
    let (files, bytes) = plan.files.values().fold((0, 0), |(files, bytes), (n, b)| (files + n, bytes + b));
    if files > 0 {
        let kinds = plan.files.iter().map(|(kind, (n, _))| format!("{} {}", count(*n), kind_text(kind, *n)));
        // Manifest lists and statistics have no size recorded anywhere but in the store.
        let size = if bytes == 0 { String::new() } else { format!(" ({})", size(bytes)) };
        let lead = format!("files       mark {}{size}", count(files));
        spread(&lead, kinds, lines);
    }
    for (because, n) in &plan.left {
        let example = plan.left_examples.iter().find(|(of, _)| of == because);
        let lead = format!("            leave {}", count(*n));
        let example = example.map_or_else(String::new, |(_, location)| format!(", such as {location}"));
        lines.push(format!("  {lead:<28} {}{example}", because.as_str()));
    }
    for unreadable in plan.unreadable.iter().take(SHOWN) {
        lines.push(format!("  {:<28} cannot read {unreadable}", "            unreadable"));
    }
    if plan.commits > 1 {
        lines.push(format!("  {:<28} one after another", format!("commits     {}", plan.commits)));
    }
}

/// What a plan's line begins with, then its parts; as many lines as it takes.
pub(super) fn spread(lead: &str, parts: impl Iterator<Item = String>, lines: &mut Vec<String>) {
    let mut line = format!("  {lead:<28} ");
    let mut is_first = true;
    for part in parts {
        let wide = line.chars().count() + 3 + part.chars().count() > MAX_WIDTH;
        if wide && !is_first {
            lines.push(std::mem::replace(&mut line, format!("  {:<28} ", "")));
            is_first = true;
        }
        if !is_first {
            line.push_str(" · ");
        }
        line.push_str(&part);
        is_first = false;
    }
    lines.push(line);
}

fn ref_text(decision: &RefDecision, plan: &PlanReport) -> String {
    let what = match decision.kind {
        RefKind::Branch => "",
        RefKind::Tag => "tag, ",
    };
    match &decision.verdict {
        RefVerdict::DropAged { age, limit } => {
            let allows = if matches!(limit.source, Source::Rule { .. }) { "allows" } else { "max-ref-age is" };
            let text = format!("{what}head {} old, {} {allows} {}", age.show(), limit.source, limit.value.show());
            text + &restorable(decision, plan)
        }
        RefVerdict::DropOutlived { created, limit } => {
            let text = format!("{what}created {} ago, {} allows {}", created.show(), limit.source, limit.value.show());
            text + &restorable(decision, plan)
        }
        RefVerdict::DropDangling => {
            format!("{what}points at snapshot {}, which the table does not have", decision.snapshot)
        }
        RefVerdict::KeepProtected { policy, rule, age } => {
            let is = age.map_or_else(|| "points at nothing".to_owned(), |age| format!("head {} old", age.show()));
            format!("{what}{is}, but policy {policy} protects {rule}")
        }
        RefVerdict::KeepNew { age, created, .. } => {
            let kind = decision.kind.as_str();
            format!("{what}head {} old, but the {kind} was created {} ago", age.show(), created.show())
        }
        RefVerdict::KeepMain | RefVerdict::KeepNoAge | RefVerdict::KeepAlive { .. } | RefVerdict::KeepYoung { .. } => {
            format!("{what}stays")
        }
    }
}

fn restorable(decision: &RefDecision, plan: &PlanReport) -> String {
    if !decision.drops_the_ref_alone() {
        return String::new();
    }
    format!(" (can be restored until {})", minute(plan.restorable_until))
}

fn expired_text(because: &ExpiredBecause, n: u64) -> String {
    match because {
        ExpiredBecause::OlderThanAge => format!("{} older than allowed", count(n)),
        ExpiredBecause::OnlyOnDropped(name) => format!("{} only on {name}", count(n)),
        ExpiredBecause::OnlyOnGone(name) => format!("{} only on {name}, which is gone", count(n)),
        ExpiredBecause::Unreferenced => format!("{} on no ref", count(n)),
        ExpiredBecause::Named => format!("{} named", count(n)),
    }
}

fn kept_texts(plan: &PlanReport) -> Vec<String> {
    let heads = plan.kept_by.iter().filter(|(verdict, _)| matches!(verdict, SnapshotVerdict::KeepHead(_)));
    let heads: u64 = heads.map(|(_, n)| n).sum();
    let mut texts = Vec::new();
    if heads > 0 {
        texts.push(counted(heads, "head"));
    }
    let bases = plan.kept_by.iter().filter(|(verdict, _)| matches!(verdict, SnapshotVerdict::KeepForkPoint(_)));
    let bases: u64 = bases.map(|(_, n)| n).sum();
    if bases > 0 {
        texts.push(counted(bases, "base") + " of open branches");
    }
    for (verdict, n) in &plan.kept_by {
        texts.push(match verdict {
            SnapshotVerdict::KeepHead(_) | SnapshotVerdict::KeepForkPoint(_) | SnapshotVerdict::Expire(_) => continue,
            SnapshotVerdict::KeepWithinAge(name) => format!("{} young enough on {name}", count(*n)),
            SnapshotVerdict::KeepAmongNewest(name) => format!("{} among the newest of {name}", count(*n)),
            SnapshotVerdict::KeepDropped { name, until } => {
                format!("{} only on {name}, until {}", count(*n), minute(*until))
            }
            SnapshotVerdict::KeepYoungUnreferenced => format!("{} on no ref, but young", count(*n)),
            SnapshotVerdict::KeepYoungSpared => format!("{} young, on refs that stay for now", count(*n)),
            SnapshotVerdict::KeepFloor => format!("{} younger than the floor", count(*n)),
        });
    }
    texts
}

pub(super) fn kind_text(kind: &str, n: u64) -> String {
    let (one, many) = match kind {
        "data" => ("data", "data"),
        "delete" => ("delete", "delete"),
        "manifest" => ("manifest", "manifests"),
        "manifest_list" => ("list", "lists"),
        "statistics" => ("statistics", "statistics"),
        other => (other, other),
    };
    if n == 1 { one.to_owned() } else { many.to_owned() }
}

fn of_sweep(table: &TableReport, sweep: &SweepReport, applied: bool, lines: &mut Vec<String>) {
    let name = &table.table;
    if let Some(reason) = &sweep.void {
        lines.push(format!(
            "{name}: marks {} are void, its {} files are kept: {reason}",
            sweep.id,
            count(sweep.marked)
        ));
        return;
    }
    let of =
        |wanted: fn(&Because) -> bool| sweep.not_deleted.iter().filter(|left| wanted(&left.because)).count() as u64;
    let mut parts = vec![format!("{} marked", count(sweep.marked))];
    if applied {
        let mut deleted = format!("{} deleted ({})", count(sweep.deleted), size(sweep.deleted_bytes));
        if sweep.deleted == 0 {
            "0 deleted".clone_into(&mut deleted);
        }
        parts.push(deleted);
    } else {
        parts.push(format!("{} would be deleted ({})", count(sweep.would_delete), size(sweep.would_delete_bytes)));
    }
    for (n, text) in [
        (of(|b| *b == Because::AlreadyGone), "already gone"),
        (of(|b| *b == Because::Changed), "kept: changed since they were marked"),
        (of(|b| *b == Because::ReferencedAgain), "kept: referenced again"),
        (of(|b| matches!(b, Because::NoOrphan(_))), "kept: no orphans any more"),
        (of(|b| *b == Because::Kept(KeptFile::ByHand)), "kept by hand"),
        (of(|b| matches!(b, Because::Kept(kept) if *kept != KeptFile::ByHand)), "kept: outside the table's location"),
        (of(|b| matches!(b, Because::Failed { .. })), "failed, marks stay"),
    ] {
        if n > 0 {
            parts.push(format!("{} {text}", count(n)));
        }
    }
    lines.push(format!("{name}   {}", parts.join(" · ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_go_on_in_the_next_line_and_none_is_wider_than_a_terminal() {
        let mut lines = Vec::new();
        spread("keep 9", (0..30).map(|n| format!("{n} among the newest of branch_{n}")), &mut lines);
        assert!(lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= MAX_WIDTH), "{lines:#?}");
        assert_eq!(lines.concat().matches("among").count(), 30);
        assert!(lines[1].starts_with(&" ".repeat(31)));
    }

    #[test]
    fn a_pattern_is_quoted_for_the_shell_where_it_must_be() {
        for (text, shown) in [("sales.orders", "sales.orders"), ("sales.*", "'sales.*'"), ("o'r x", r"'o'\''r x'")] {
            assert_eq!(quoted(text), shown);
        }
    }
}
