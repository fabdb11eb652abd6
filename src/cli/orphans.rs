//! The orphan job's plan as text.

use super::text::{MAX_WIDTH, count, counted, size};
use super::work::{kind_text, spread};
use crate::model::Timestamp;
use crate::plan::KeptObject;
use crate::report::{DroppedReport, OrphansReport, RunReport, TableReport};

/// Orphans and odd files that are shown by name.
const SHOWN: usize = 5;

/// Folders of dropped tables that are shown.
const DROPPED: usize = 20;

/// What was listed, what goes and what stays.
pub(super) fn plan(table: &TableReport, plan: &OrphansReport, now: Timestamp, lines: &mut Vec<String>) {
    let head = format!("plan {} for {} at {}", plan.id, table.table, now.show());
    let ages = format!("older than {}, metadata files {}", plan.older_than.show(), plan.metadata_older_than.show());
    if head.chars().count() + ages.chars().count() + 3 <= MAX_WIDTH {
        lines.push(format!("{head}   {ages}"));
    } else {
        lines.extend([head, format!("  {ages}")]);
    }
    let lead = format!("listed      {} ({})", count(plan.listed.objects), size(plan.listed.bytes));
    spread(&lead, plan.roots.iter().cloned(), lines);
    let orphans = plan.orphans();
    if orphans.objects > 0 {
        let lead = format!("orphans     mark {} ({})", count(orphans.objects), size(orphans.bytes));
        let kinds = plan
            .kinds
            .iter()
            .map(|(kind, of)| format!("{} {}", count(of.objects), kind_text(kind.as_str(), of.objects)));
        spread(&lead, kinds, lines);
        spread("", plan.ages.iter().map(|(band, of)| format!("{} {}", count(of.objects), band.as_str())), lines);
        let mut lead = "            largest";
        for (bytes, location) in plan.largest.iter().take(SHOWN) {
            lines.push(format!("  {lead:<28} {:>10}  {}", size(*bytes), below(plan, location)));
            lead = "";
        }
    }
    let kept = plan.listed.objects - orphans.objects;
    let lead = format!("            keep {}", count(kept));
    spread(&lead, kept_texts(plan).into_iter(), lines);
    for (root, why) in &plan.left_out {
        lines.push(format!("  {:<28} {root} {why}", "            not looked at"));
    }
    for folder in plan.foreign_folders.iter().take(SHOWN) {
        let folder = below(plan, folder);
        lines.push(format!("  {:<28} {folder} holds nothing of the table", "            foreign"));
    }
    for (file, why) in plan.unknown_metadata.iter().take(SHOWN) {
        lines.push(format!("  {:<28} {}", "            not understood", below(plan, file)));
        lines.push(format!("  {:<28} {why}", ""));
    }
    for kept in &plan.kept {
        lines.push(format!("{}  {}  {}", kept.location, size(kept.size), kept.because.as_str()));
    }
}

/// A location as seen from the listed folder that it lies in.
fn below<'a>(plan: &OrphansReport, location: &'a str) -> &'a str {
    plan.roots.iter().find_map(|root| location.strip_prefix(root.as_str())).unwrap_or(location)
}

/// Folders of dropped tables, the largest first.
pub(super) fn dropped(report: &RunReport, lines: &mut Vec<String>) {
    let mut all: Vec<&DroppedReport> = report.dropped.iter().collect();
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|of| std::cmp::Reverse(of.held.bytes));
    let bytes = all.iter().map(|of| of.held.bytes).sum();
    let folders = counted(all.len() as u64, "folder");
    lines
        .push(format!("{folders} with Iceberg metadata that no catalogued table owns, {}; they are kept", size(bytes)));
    for of in all.iter().take(DROPPED) {
        let age = of.last_write.map_or_else(|| "–".to_owned(), |at| format!("{} ago", report.now.since(at).show()));
        let (held, files) = (size(of.held.bytes), counted(of.held.objects, "file"));
        lines.push(format!("  {}  {held} in {files}, last write {age}", of.folder));
    }
    if all.len() > DROPPED {
        lines.push(format!("  and {} more", count((all.len() - DROPPED) as u64)));
    }
}

fn kept_texts(plan: &OrphansReport) -> Vec<String> {
    let of = |because: &KeptObject| {
        let word = serde_json::to_value(because).ok()?;
        let tally = plan.of_kind(word.as_str()?);
        (tally.objects > 0).then(|| format!("{} {}", count(tally.objects), because.as_str()))
    };
    KeptObject::ALL.iter().filter_map(of).collect()
}
