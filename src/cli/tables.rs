//! `tables`: what the catalogs hold.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::print;
use super::text::{count, left, right, table};
use crate::config::Pattern;
use crate::model::{Age, TableName, Timestamp};
use crate::run::{Lake, RunError};

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line {
    table: TableName,
    uuid: Option<Uuid>,
    format_version: u8,
    location: String,
    snapshots: usize,
    branches: usize,
    tags: usize,
    last_updated: Timestamp,
    gc_enabled: bool,
    error: Option<String>,
}

/// Lists the tables that match.
pub(super) async fn list(lake: &Lake, patterns: &[Pattern], json: bool) -> Result<u8, RunError> {
    let mut code = 0;
    let mut lines = Vec::new();
    for catalog in &lake.catalogs {
        let tables = match catalog.list_tables().await {
            Ok(tables) => tables,
            Err(error) => {
                print::error(&error);
                code = 4;
                continue;
            }
        };
        for listed in tables {
            if !patterns.is_empty() && !patterns.iter().any(|pattern| pattern.matches_table(&listed.name)) {
                continue;
            }
            match catalog.load(&listed.name).await {
                Ok(loaded) => lines.push(Line {
                    uuid: loaded.state.uuid,
                    format_version: loaded.state.format_version,
                    location: loaded.state.location.clone(),
                    snapshots: loaded.state.snapshots.len(),
                    branches: loaded.state.refs.values().filter(|r| r.kind == crate::model::RefKind::Branch).count(),
                    tags: loaded.state.refs.values().filter(|r| r.kind == crate::model::RefKind::Tag).count(),
                    last_updated: loaded.state.last_updated,
                    gc_enabled: loaded.state.gc_enabled(),
                    error: None,
                    table: listed.name,
                }),
                Err(error) => {
                    code = 4;
                    lines.push(Line {
                        table: listed.name,
                        uuid: None,
                        format_version: 0,
                        location: listed.metadata_location.unwrap_or_default(),
                        snapshots: 0,
                        branches: 0,
                        tags: 0,
                        last_updated: Timestamp(0),
                        gc_enabled: false,
                        error: Some(error.to_string()),
                    });
                }
            }
        }
    }
    if code != 0 && lines.iter().all(|line| line.error.is_some()) {
        code = 1;
    }
    if json {
        lines.iter().for_each(print::json);
        return Ok(code);
    }
    let now = lake.hands.clock.now();
    let columns = [
        left("TABLE", 0),
        right("FORMAT", 3),
        right("SNAPSHOTS", 1),
        right("BRANCHES", 1),
        right("TAGS", 2),
        right("UPDATED", 2),
        left("NOTE", 4),
    ];
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let note = match (&line.error, line.gc_enabled, line.uuid) {
                (Some(_), ..) => "cannot be loaded",
                (None, false, _) => "gc.enabled is not true: skipped",
                (None, true, None) => "has no uuid: skipped",
                (None, true, Some(_)) => "",
            };
            let name = if lake.catalogs.len() > 1 { line.table.full() } else { line.table.to_string() };
            let ago: Age = now.since(line.last_updated);
            vec![
                name,
                line.format_version.to_string(),
                count(line.snapshots as u64),
                count(line.branches as u64),
                count(line.tags as u64),
                if line.error.is_some() { String::new() } else { ago.show() },
                note.to_owned(),
            ]
        })
        .collect();
    table(&columns, &rows).iter().for_each(print::line);
    for error in lines.iter().filter_map(|line| line.error.as_ref()) {
        print::error(error);
    }
    Ok(code)
}
