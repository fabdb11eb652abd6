//! `why LOCATION`: what is known about a file.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::text::{minute, size};
use super::{failed, print};
use crate::error::Error;
use crate::inventory::reach::{Reader, Scope};
use crate::model::{FileKind, Location, ObjectFacts, PlanId, RunId, TableName, TableRoots};
use crate::run::{Lake, RunError};
use crate::state::{Keep, Line, ListFile, MarkFilter, MarkList, MarkStatus};
use crate::storage::Storage;

/// One thing that is known of the file, as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Fact {
    /// It is there.
    Object {
        /// What the store says of it.
        object: ObjectFacts,
    },
    /// The store did not show it.
    Store {
        /// In the store's words.
        store: String,
    },
    /// It is kept by hand.
    Kept {
        /// By whom, and why.
        kept: Keep,
    },
    /// A mark list had it.
    Marked {
        /// The list's id.
        marks: String,
        table: TableName,
        plan: PlanId,
        run: RunId,
        /// What became of it.
        state: &'static str,
        /// All of it in words.
        text: String,
    },
    /// It lies in a table's folder, or in none.
    Table {
        table: Option<TableName>,
        /// Whether the table refers to it now.
        referenced: bool,
        /// What it is to a snapshot of the table.
        kind: Option<FileKind>,
    },
}

/// Looks in keeps, in all mark lists and what became of them, and in the table whose folder it lies in.
pub(super) async fn command(lake: &Lake, text: &str, json: bool) -> Result<u8, RunError> {
    let rules = lake.hands.storage.rules();
    let location = rules.parse(text).map_err(|error| RunError::Rejected(error.to_string()))?;
    let mut facts: Vec<(String, Fact)> = Vec::new();
    match storage_of(lake, &location).await?.head(location.raw()).await {
        Ok(found) => facts.push((format!("it is there: {}", size(found.size)), Fact::Object { object: found })),
        Err(error) => facts.push((format!("the store: {}", error.reason), Fact::Store { store: error.reason })),
    }
    for keep in lake.hands.state.keeps().await.map_err(failed)? {
        if keep.location == location.canonical() {
            let text = format!("kept by hand by {} since {}: {}", keep.by, minute(keep.at), keep.reason);
            facts.push((text, Fact::Kept { kept: keep }));
        }
    }
    for list in lake.hands.state.marks(MarkFilter::All, None).await.map_err(failed)? {
        if let Some(fact) = in_list(lake, &list, &location).await? {
            facts.push(fact);
        }
    }
    facts.extend(in_tables(lake, &location).await?);
    for (text, value) in facts {
        if json { print::json(&value) } else { print::line(text) }
    }
    Ok(0)
}

/// Whether a mark list had it, and what became of it there.
async fn in_list(lake: &Lake, list: &MarkList, location: &Location) -> Result<Option<(String, Fact)>, RunError> {
    // A sweep that left something wrote a new list; the audit log tells the one before and its outcomes.
    let run_of = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let sweeps: Vec<(crate::model::Timestamp, Value)> = lake
        .hands
        .state
        .audit_tail(u32::MAX)
        .await
        .map_err(failed)?
        .into_iter()
        .filter(|row| row.action == "sweep" && row.table.as_ref() == Some(&list.table))
        .map(|row| (row.at, run_of(&row.detail)))
        .filter(|(_, detail)| detail["marks"] == list.id)
        .collect();
    // A sweep that left something put a list of that in the place of the list that it had.
    let had = |detail: &Value| serde_json::from_value::<ListFile>(detail["list"].clone()).ok();
    let mut is_marked = holds(lake, &list.list, location).await?;
    let mut text =
        format!("marked by job {} of {} at {}, list {}", list.job, list.table, list.created_at.show(), list.id);
    let mut what = "waits for the sweep";
    // Oldest first; what a sweep left is in the list that the next one had.
    let sweeps: Vec<_> = sweeps.into_iter().rev().collect();
    for (turn, (at, detail)) in sweeps.iter().enumerate() {
        let Some(file) = had(detail) else { continue };
        if !holds(lake, &file, location).await? {
            continue;
        }
        is_marked = true;
        let because = match detail["outcomes"].as_str() {
            Some(file) => outcome(lake, file, location).await?,
            None => None,
        };
        let next = sweeps.get(turn + 1).and_then(|(_, detail)| had(detail)).unwrap_or_else(|| list.list.clone());
        let is_left = next != file && holds(lake, &next, location).await?;
        (text, what) = match because {
            Some(because) => (format!("{text}; swept at {}, and not deleted: {because}", at.show()), "was left"),
            None if is_left => (format!("{text}; not come to by the sweep at {}", at.show()), "was left"),
            None => (format!("{text}; deleted by the sweep at {}", at.show()), "was deleted"),
        };
    }
    if !is_marked {
        return Ok(None);
    }
    match list.status {
        MarkStatus::Void => text = format!("{text}; the list is void: {}", list.note.as_deref().unwrap_or_default()),
        MarkStatus::Open if sweeps.is_empty() => text = format!("{text}; deleted not before {}", minute(list.due_at)),
        MarkStatus::Open | MarkStatus::Swept => {}
    }
    let fact = Fact::Marked {
        marks: list.id.clone(),
        table: list.table.clone(),
        plan: list.plan,
        run: list.run.clone(),
        state: what,
        text: text.clone(),
    };
    Ok(Some((text, fact)))
}

async fn holds(lake: &Lake, list: &ListFile, location: &Location) -> Result<bool, RunError> {
    let rules = lake.hands.storage.rules();
    for line in lake.hands.plans.read_list(list).await.map_err(failed)? {
        if let Line::Entry(entry) = line.map_err(failed)?
            && rules.parse(&entry.location).is_ok_and(|of| of == *location)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Why the sweep that wrote this file of outcomes did not delete the file, if it did not.
async fn outcome(lake: &Lake, file: &str, location: &Location) -> Result<Option<String>, RunError> {
    let packed = lake.hands.plans.read(file).await.map_err(failed)?;
    let lines = zstd::decode_all(&packed[..])
        .map_err(|error| failed(crate::state::ListError::Encode { reason: error.to_string() }))?;
    let rules = lake.hands.storage.rules();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Value = serde_json::from_slice(line).map_err(failed)?;
        let is_it = line["location"].as_str().and_then(|of| rules.parse(of).ok()).is_some_and(|of| of == *location);
        if is_it {
            return Ok(Some(line["because"].to_string()));
        }
    }
    Ok(None)
}

/// What the file is asked for with: as the table in whose folder it lies, if that can be loaded.
async fn storage_of(lake: &Lake, location: &Location) -> Result<Storage, RunError> {
    let world = lake.survey().await?;
    let holds = |roots: &&TableRoots| roots.roots.iter().any(|root| root.contains(location));
    let table = world.roots.iter().find(holds).map(|roots| &roots.table);
    let loaded = match table.and_then(|table| Some((lake.catalog(&table.catalog)?, table))) {
        Some((catalog, table)) => catalog.load(table).await.ok(),
        None => None,
    };
    Ok(loaded.map_or_else(|| lake.hands.storage.clone(), |loaded| loaded.storage))
}

/// The tables in whose folders it lies, and whether they refer to it now.
async fn in_tables(lake: &Lake, location: &Location) -> Result<Vec<(String, Fact)>, RunError> {
    let world = lake.survey().await?;
    let rules = lake.hands.storage.rules();
    let mut facts = Vec::new();
    for roots in world.roots.iter().filter(|roots| roots.roots.iter().any(|root| root.contains(location))) {
        let Some(catalog) = lake.catalog(&roots.table.catalog) else { continue };
        let loaded = catalog.load(&roots.table).await.map_err(failed)?;
        let mut found: Option<FileKind> = None;
        let reader = Reader::new(loaded.storage.clone(), 0, std::sync::Arc::clone(&lake.hands.progress));
        reader
            .reach(
                &loaded.state.snapshots,
                Scope::Live,
                |_| false,
                |reached| {
                    if rules.canonical(reached.location).is_ok_and(|of| of == location.canonical()) {
                        found = Some(reached.kind);
                    }
                },
            )
            .await
            .map_err(|error| failed(Error::from(error)))?;
        let mut is_named = false;
        crate::catalog::metadata::each_string(&loaded.metadata, |text| {
            is_named |= rules.canonical(text).is_ok_and(|of| of == location.canonical());
        })
        .map_err(failed)?;
        let name = &roots.table;
        let text = match (found, is_named) {
            (Some(kind), _) => format!("{name} refers to it now: {kind} of a snapshot in its metadata"),
            (None, true) => format!("the metadata of {name} names it"),
            (None, false) => format!("it lies in the folder of {name}, which does not refer to it now"),
        };
        let referenced = found.is_some() || is_named;
        facts.push((text, Fact::Table { table: Some(name.clone()), referenced, kind: found }));
    }
    if facts.is_empty() {
        let nowhere = Fact::Table { table: None, referenced: false, kind: None };
        facts.push(("it lies in no catalogued table's folder".to_owned(), nowhere));
    }
    Ok(facts)
}
