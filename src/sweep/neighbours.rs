//! Who else has files in a table's folders: what they refer to counts at every proof (safety rules 6 and 10).

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use serde_json::json;

use crate::apply::Work;
use crate::catalog::LoadedTable;
use crate::catalog::metadata;
use crate::error::Error;
use crate::guard::Refusal;
use crate::inventory::borders;
use crate::inventory::loose::Loose;
use crate::model::TableName;
use crate::plan::roots::Place;
use crate::state::{FindingKind, Observation, Severity};

/// Where to look which tables have files in the folders of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Borders {
    /// What the last orphan run found.
    Known,
    /// Look again.
    Fresh,
}

/// What counts as referenced beside the table itself: tables whose folders lie around its own or that an override
/// names, and those that have files in its folders (safety rule 6); and what a commit of ours removed without a plan,
/// as long as that finding is open, be it acknowledged or not (safety rule 10).
pub async fn neighbours(
    work: &Work<'_>,
    name: &TableName,
    place: &Place,
    borders: Borders,
) -> Result<Vec<LoadedTable>, Error> {
    let mut names = match borders {
        Borders::Known => still_there(work, work.known_borders().boxed().await?.reaching_into(&place.roots)).await?,
        Borders::Fresh => work.borders().boxed().await?.reaching_into(&place.roots),
    };
    names.extend(place.neighbours.iter().cloned());
    names.remove(name);
    let mut all = Vec::new();
    for neighbour in &names {
        all.push(work.load_any(neighbour).await?);
    }
    for finding in work.hands.state.open_findings_of(work.uuid).await? {
        let before = finding.seen.numbers["before"].as_str();
        if let (FindingKind::UnplannedRemoval, Some(location)) = (finding.seen.kind, before) {
            let (metadata, state) = metadata::read(&work.storage, location).await?;
            all.push(LoadedTable {
                name: name.clone(),
                metadata_location: location.to_owned(),
                metadata,
                state: Arc::new(state),
                storage: work.storage.clone(),
            });
        }
    }
    Ok(all)
}

/// Those of the tables that are not gone: what is known of them is as old as the last orphan run.
async fn still_there(work: &Work<'_>, mut names: BTreeSet<TableName>) -> Result<BTreeSet<TableName>, Error> {
    if names.is_empty() {
        return Ok(names);
    }
    let world = work.world().boxed().await?;
    let is_listed = |name: &TableName| world.tables.iter().any(|table| table.name == *name);
    names.retain(|name| world.unlisted.contains_key(&name.catalog) || is_listed(name));
    Ok(names)
}

/// The same for orphans, whose first proof and second look anew who has files in the table's folders; the metadata files
/// of configured readers count too.
pub async fn orphan_neighbours(work: &Work<'_>, name: &TableName, place: &Place) -> Result<Vec<LoadedTable>, Error> {
    let mut all = neighbours(work, name, place, Borders::Fresh).await?;
    for location in &work.hands.config.orphans.external_readers {
        let (metadata, state) = metadata::read(&work.hands.storage, location).await?;
        all.push(LoadedTable {
            name: name.clone(),
            metadata_location: location.clone(),
            metadata,
            state: Arc::new(state),
            storage: work.hands.storage.clone(),
        });
    }
    Ok(all)
}

/// A table that may have files in any folder, since it cannot be read as it is now, unless somebody said that they know:
/// its finding says so. What cannot be read must not cost another table its rows (safety rule 6).
pub async fn unknown_reader(
    work: &Work<'_>,
    name: &TableName,
    borders: &borders::Survey,
) -> Result<Option<Refusal>, Error> {
    let state = &work.hands.state;
    if let Some(catalog) = borders.unlisted.first() {
        return Ok(Some(Refusal::UnlistedCatalog { catalog: catalog.clone() }));
    }
    for (table, reason) in borders.unread.iter().filter(|(table, _)| *table != name) {
        let seen = Observation {
            kind: FindingKind::UnreadableTable,
            table: table.clone(),
            uuid: None,
            ref_name: None,
            severity: Severity::Critical,
            numbers: json!({}),
            message: format!(
                "{table} cannot be read, and so it is not known whether it has files of other tables: {reason}"
            ),
            advice: "mend or drop it; acknowledged, orphans of other tables are deleted in spite of it".to_owned(),
        };
        let id = state.raise(&seen, work.now).await?;
        let open = state.open_findings().await?;
        if !open.iter().any(|finding| finding.id == id && finding.is_acknowledged(work.now)) {
            return Ok(Some(Refusal::UnknownReader { table: table.full(), finding: id }));
        }
    }
    Ok(None)
}

/// Metadata files of another line of the table, which forbid to delete its orphans. Of old ones somebody may say that they
/// know; then those files and what only they reach protect nothing.
pub async fn forked(work: &Work<'_>, table: &TableName, loose: &Loose) -> Result<Vec<String>, Error> {
    let (state, now) = (&work.hands.state, work.now);
    let mut all = loose.forked.clone();
    all.extend(loose.forked_before.iter().cloned());
    all.sort_unstable();
    let Some(first) = all.first() else {
        state.resolve_kind(FindingKind::ForkedLineage, table, Some(work.uuid), now).await?;
        return Ok(all);
    };
    let seen = Observation {
        kind: FindingKind::ForkedLineage,
        table: table.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Critical,
        numbers: json!({}),
        message: format!("{first} comes after a state of {table} that its log does not have"),
        advice: "find out whether the table was restored, or is in two catalogs; once all such files are a week old, \
                 acknowledge it to delete orphans, and what only they need"
            .to_owned(),
    };
    let is_known = state.raise_named(seen, &all, now).boxed().await?;
    Ok(if is_known && loose.forked.is_empty() { Vec::new() } else { all })
}
