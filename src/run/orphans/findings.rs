//! What an orphan run finds wrong with a table's folders.

use futures::FutureExt;
use serde_json::json;

use crate::apply::Work;
use crate::error::Error;
use crate::inventory::usage::Usage;
use crate::model::TableName;
use crate::plan::orphans::OrphanFacts;
use crate::plan::roots::Exclusive;
use crate::report::TableReport;
use crate::state::{FindingKind, Observation, Severity};

/// A finding for folders that may hold other things than the table's files.
pub(super) async fn not_exclusive(
    work: &Work<'_>,
    name: &TableName,
    alone: &Exclusive,
    report: &mut TableReport,
) -> Result<(), Error> {
    let state = &work.hands.state;
    let Some((root, why)) = alone.left_out.first_key_value() else {
        state.resolve_kind(FindingKind::NotExclusive, name, Some(work.uuid), work.now).await?;
        return Ok(());
    };
    let seen = Observation {
        kind: FindingKind::NotExclusive,
        table: name.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Warning,
        numbers: json!({ "folders": alone.left_out.keys().collect::<Vec<_>>() }),
        message: format!("{root}, a folder of {name}, {why}; no orphans are looked for in it"),
        advice: "give the table a data or metadata path of its own".to_owned(),
    };
    state.raise(&seen, work.now).boxed().await?;
    report.notes.push(format!("{root} {why}, so no orphans are looked for in it"));
    Ok(())
}

/// A finding for folders that hold nothing of the table.
pub(super) async fn foreign_folders(
    work: &Work<'_>,
    name: &TableName,
    facts: &OrphanFacts,
    usage: &Usage,
) -> Result<(), Error> {
    let state = &work.hands.state;
    let Some(first) = facts.foreign_folders.first() else {
        state.resolve_kind(FindingKind::ForeignFolder, name, Some(work.uuid), work.now).await?;
        return Ok(());
    };
    let of = facts.foreign_folders.iter().filter_map(|folder| usage.folders.get(folder));
    let (objects, bytes) = of.fold((0, 0), |(objects, bytes), (all, _)| (objects + all.objects, bytes + all.bytes));
    let count = facts.foreign_folders.len();
    let seen = Observation {
        kind: FindingKind::ForeignFolder,
        table: name.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Info,
        numbers: json!({ "folders": count, "objects": objects, "bytes": bytes }),
        message: format!(
            "{count} folders of {name}, such as {first}, hold nothing of it; their {objects} files are kept"
        ),
        advice: "if they are rubbish, remove them by hand".to_owned(),
    };
    state.raise(&seen, work.now).boxed().await?;
    Ok(())
}
