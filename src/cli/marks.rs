//! `marks`: files that wait for the sweep.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::text::{count, left, minute, right, size, table};
use super::{MarksAction, failed, print};
use crate::model::{PlanId, RunId, TableName, Timestamp};
use crate::run::{Lake, RunError};
use crate::state::{self, Keep, MarkFilter, MarkList};

/// A mark list, as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line<'a> {
    /// For `icewarden marks show`.
    id: &'a str,
    table: &'a TableName,
    uuid: Uuid,
    /// The job that marked.
    job: &'a str,
    /// `open`, `swept` or `void`.
    status: &'a str,
    /// Files.
    objects: u64,
    bytes: u64,
    created_at: Timestamp,
    /// Not deleted before.
    due_at: Timestamp,
    plan: PlanId,
    run: &'a RunId,
    /// What became of it.
    note: Option<&'a str>,
}

/// Does what was asked for.
pub(super) async fn command(lake: &Lake, action: MarksAction, json: bool) -> Result<u8, RunError> {
    match action {
        MarksAction::List { selection, all } => {
            let filter = if all { MarkFilter::All } else { MarkFilter::Open };
            let patterns = selection.patterns();
            let mut lists = lake.hands.state.marks(filter, None).await.map_err(failed)?;
            lists.retain(|list| patterns.is_empty() || patterns.iter().any(|p| p.matches_table(&list.table)));
            list(lake, &lists, json);
            Ok(0)
        }
        MarksAction::Show { id } => show(lake, &id, json).await,
        MarksAction::Keep { location, reason } => {
            let location = canonical(lake, &location)?;
            let keep = Keep { location, by: super::actor(), reason, at: lake.hands.clock.now() };
            lake.hands.plans.keep(&lake.hands.state, &keep).await.map_err(failed)?;
            super::audit(lake, "keep", None, json!({ "location": keep.location, "reason": keep.reason })).await?;
            print::line(format!("kept for all jobs until it is released: {}", keep.location));
            Ok(0)
        }
        MarksAction::Release { location } => {
            let location = canonical(lake, &location)?;
            if lake.hands.plans.release_keep(&lake.hands.state, &location).await.map_err(failed)? {
                super::audit(lake, "release", None, json!({ "location": location })).await?;
                print::line(format!("released: {location}"));
                return Ok(0);
            }
            Err(RunError::Rejected(format!("{location} was not kept by hand")))
        }
    }
}

fn canonical(lake: &Lake, location: &str) -> Result<String, RunError> {
    let parsed = lake.hands.storage.rules().parse(location).map_err(|error| RunError::Rejected(error.to_string()))?;
    Ok(parsed.canonical().to_owned())
}

fn list(lake: &Lake, lists: &[MarkList], json: bool) {
    if json {
        for list in lists {
            print::json(&Line {
                id: &list.id,
                table: &list.table,
                uuid: list.uuid,
                job: &list.job,
                status: list.status.as_str(),
                objects: list.list.objects,
                bytes: list.list.bytes,
                created_at: list.created_at,
                due_at: list.due_at,
                plan: list.plan,
                run: &list.run,
                note: list.note.as_deref(),
            });
        }
        return;
    }
    if lists.is_empty() {
        print::line("no marks");
        return;
    }
    let now = lake.hands.clock.now();
    let columns = [
        left("LIST", 0),
        left("TABLE", 0),
        right("FILES", 0),
        right("SIZE", 0),
        left("STATUS", 1),
        left("DELETED NOT BEFORE", 0),
        left("NOTE", 2),
    ];
    let rows: Vec<Vec<String>> = lists
        .iter()
        .map(|list| {
            let due = if list.due_at <= now { "due now".to_owned() } else { minute(list.due_at) };
            vec![
                list.id.clone(),
                list.table.to_string(),
                count(list.list.objects),
                size(list.list.bytes),
                list.status.as_str().to_owned(),
                if list.closed_at.is_some() { String::new() } else { due },
                list.note.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table(&columns, &rows).iter().for_each(print::line);
}

async fn show(lake: &Lake, id: &str, json: bool) -> Result<u8, RunError> {
    let Some(list) = lake.hands.state.mark(id).await.map_err(failed)? else {
        return Err(RunError::Rejected(format!("no mark list {id:?} (hint: icewarden marks list --all)")));
    };
    let kept = lake.hands.state.kept().await.map_err(failed)?;
    for line in lake.hands.plans.read_list(&list.list).await.map_err(failed)? {
        let state::Line::Entry(entry) = line.map_err(failed)? else { continue };
        if json {
            print::json(&entry);
            continue;
        }
        let is_kept = lake.hands.storage.rules().parse(&entry.location).is_ok_and(|l| kept.contains(l.canonical()));
        let note = if is_kept { "   (kept by hand)" } else { "" };
        print::line(format!("{:<13} {:>10}  {}{note}", entry.kind, size(entry.size()), entry.location));
    }
    Ok(0)
}
