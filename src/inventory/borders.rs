//! Which tables have files in the folders of others: clones, and tables that took files of another in (`add_files`).
//!
//! The first survey of a catalog reads the manifests of all its tables, later ones only those that are new. A table
//! that cannot be read as it is now may have files anywhere.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};

use super::manifests::{ManifestRef, Unreadable};
use super::reach::{Progress, Reader, Scope};
use super::world::World;
use crate::catalog::{Catalog, LoadedTable};
use crate::model::roots::roots_of;
use crate::model::{Fingerprint, LocationRules, Root, TableName};
use crate::state::{Borders, ListFile, ListWriter, Plans, PlansError, Retained, State, StateError};
use crate::storage::Storage;

/// Tables read at once.
const TABLES_IN_FLIGHT: usize = 4;

/// Folders that are told apart for one table. Where it refers into more, the folders above them stand for them.
const FOLDERS: usize = 256;

/// Where all tables refer to.
#[derive(Debug, Default)]
pub struct Survey {
    /// Tables that refer beyond their own folders.
    pub tables: Vec<Borders>,
    /// Tables that cannot be read now, with the reason.
    pub unread: BTreeMap<TableName, String>,
    /// Catalogs that cannot be listed now: what is known of their tables may be old.
    pub unlisted: BTreeSet<String>,
}

impl Survey {
    /// The tables that have files in any of these folders, or above one of them.
    pub fn reaching_into(&self, roots: &BTreeSet<Root>) -> BTreeSet<TableName> {
        let touches = |outside: &Root| roots.iter().any(|root| root.covers(outside) || outside.covers(root));
        let of = |borders: &&Borders| borders.outside.iter().any(touches);
        self.tables.iter().filter(of).map(|borders| borders.table.clone()).collect()
    }
}

/// Brings what is known of all tables up to date.
pub async fn survey(
    catalogs: &[Catalog],
    world: &World,
    (state, plans): (&State, &Plans),
    storage: &Storage,
    progress: &Arc<Progress>,
) -> Result<Survey, PlansError> {
    let mut survey = Survey::default();
    for catalog in catalogs {
        let known = known(state, catalog.name(), storage.rules()).boxed().await?;
        if world.unlisted.contains_key(catalog.name()) {
            survey.tables.extend(known);
            survey.unlisted.insert(catalog.name().to_owned());
            continue;
        }
        let tables: Vec<&TableName> =
            world.tables.iter().map(|table| &table.name).filter(|name| name.catalog == catalog.name()).collect();
        let mut by_name: BTreeMap<TableName, Borders> =
            known.into_iter().map(|borders| (borders.table.clone(), borders)).collect();
        let known: Vec<(&TableName, Option<Borders>)> =
            tables.into_iter().map(|name| (name, by_name.remove(name))).collect();
        for gone in by_name.keys() {
            state.forget_borders(gone).boxed().await?;
        }
        let seen: Vec<Result<Seen, PlansError>> = stream::iter(0..known.len())
            .map(|at| one(catalog, world, known[at].0, known[at].1.clone(), (state, plans), storage, progress).boxed())
            .buffered(TABLES_IN_FLIGHT)
            .collect()
            .await;
        for seen in seen {
            let Seen { borders, unread } = seen?;
            if let Some(reason) = unread {
                survey.unread.insert(borders.table.clone(), reason);
            }
            if !borders.outside.is_empty() {
                survey.tables.push(borders);
            }
        }
    }
    Ok(survey)
}

/// What is known of a catalog's tables.
pub async fn known(state: &State, catalog: &str, rules: &LocationRules) -> Result<Vec<Borders>, StateError> {
    let mut known = state.borders(catalog).await?;
    for borders in &mut known {
        // `[locations]` may have changed since.
        let again = |root: &Root| rules.root(root.as_str()).unwrap_or_else(|_| root.clone());
        borders.outside = borders.outside.iter().map(again).collect();
    }
    Ok(known)
}

struct Seen {
    borders: Borders,
    unread: Option<String>,
}

async fn one(
    catalog: &Catalog,
    world: &World,
    name: &TableName,
    known: Option<Borders>,
    (state, plans): (&State, &Plans),
    storage: &Storage,
    progress: &Arc<Progress>,
) -> Result<Seen, PlansError> {
    let now = world.roots.iter().find(|roots| roots.table == *name).map(|roots| roots.metadata_location.as_str());
    if let Some(known) = &known
        && known.metadata_location.is_some()
        && known.metadata_location.as_deref() == now
        && !world.unloadable.contains_key(name)
    {
        return Ok(Seen { borders: known.clone(), unread: None });
    }
    let mut borders = known.unwrap_or_else(|| Borders {
        table: name.clone(),
        metadata_location: None,
        outside: BTreeSet::new(),
        manifests: ListFile { location: String::new(), sha256: String::new(), objects: 0, bytes: 0 },
    });
    borders.metadata_location = None;
    let table = match catalog.load(name).boxed().await {
        Ok(table) => table,
        Err(error) => return Ok(Seen { borders, unread: Some(error.to_string()) }),
    };
    let made = Made { table: name.full(), roots: roots(&table, storage.rules()), locations: storage.rules().clone() };
    let read = retained(plans, &borders.manifests, &made).await;
    let reader = Reader::new(storage.clone(), 0, Arc::clone(progress)).through(&table.storage);
    let mut folders = Folders::of(&borders.outside);
    let done = beyond(&reader, &table, (&made.roots, &read), &mut folders, storage.rules()).boxed().await;
    borders.outside = folders.roots(storage.rules());
    let unread = match done {
        Ok(manifests) => {
            borders.metadata_location = Some(table.metadata_location.clone());
            borders.manifests = write(plans, &made, &manifests).await?;
            None
        }
        Err(error) => Some(error.to_string()),
    };
    state.put_borders(&borders).boxed().await?;
    Ok(Seen { borders, unread })
}

/// What the list of manifests that were read starts with: on what it was made.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    table: String,
    roots: BTreeSet<Root>,
    locations: LocationRules,
}

fn roots(table: &LoadedTable, rules: &LocationRules) -> BTreeSet<Root> {
    roots_of(&table.state, &table.metadata_location, rules).unwrap_or_default()
}

/// The manifests that were read before. Where that cannot be told, all are read again, and so they are where a folder
/// is not the table's own any more: its files there are beyond its borders now.
async fn retained(plans: &Plans, list: &ListFile, now: &Made) -> HashSet<Retained> {
    if list.location.is_empty() {
        return HashSet::new();
    }
    let Ok(reader) = plans.read_list(list).await else { return HashSet::new() };
    match reader.header::<Made>() {
        Ok(then) if then.locations == now.locations && then.roots.is_subset(&now.roots) => {
            reader.read_all().map(|(_, retained)| retained.into_iter().collect()).unwrap_or_default()
        }
        _ => HashSet::new(),
    }
}

async fn write(plans: &Plans, made: &Made, manifests: &[Arc<ManifestRef>]) -> Result<ListFile, PlansError> {
    // A table's name may have any character.
    let file = format!("borders/{:032x}.zst", Fingerprint::of(&made.table).bits());
    let location = plans.location(&file)?;
    let retained: Vec<Retained> = manifests.iter().map(|manifest| manifest.retained()).collect();
    let (bytes, list) = ListWriter::write_all(made, Vec::new(), &retained, &location)?;
    plans.write(&file, bytes).await?;
    Ok(list)
}

async fn beyond(
    reader: &Reader,
    table: &LoadedTable,
    (roots, read): (&BTreeSet<Root>, &HashSet<Retained>),
    folders: &mut Folders,
    rules: &LocationRules,
) -> Result<Vec<Arc<ManifestRef>>, Unreadable> {
    let mut visit = |location: &str| {
        let Ok(canonical) = rules.canonical(location) else { return };
        if roots.iter().any(|root| canonical.starts_with(root.as_str())) {
            return;
        }
        if let Some((folder, _)) = canonical.rsplit_once('/') {
            folders.add(folder);
        }
    };
    for file in table.state.statistics.iter().chain(&table.state.partition_statistics) {
        visit(&file.location);
    }
    let is_known = |manifest: &ManifestRef| manifest.length > 0 && read.contains(&manifest.retained());
    reader.reach(&table.state.snapshots, Scope::AnyStatus, is_known, |reached| visit(reached.location)).await
}

/// Folders by their text without the last `/`; coarser ones where there are many.
#[derive(Debug)]
struct Folders {
    all: BTreeSet<String>,
    /// Slashes that a folder has at most, those of `://` among them.
    slashes: usize,
}

impl Folders {
    fn of(roots: &BTreeSet<Root>) -> Self {
        let mut folders = Self { all: BTreeSet::new(), slashes: usize::MAX };
        for root in roots {
            folders.add(root.as_str().trim_end_matches('/'));
        }
        folders
    }

    fn add(&mut self, folder: &str) {
        let folder = cut(folder, self.slashes);
        if self.all.contains(folder) {
            return;
        }
        self.all.insert(folder.to_owned());
        while self.all.len() > FOLDERS {
            let deepest = self.all.iter().map(|folder| folder.matches('/').count()).max().unwrap_or_default();
            // The authority alone is as coarse as it gets.
            if deepest <= 2 {
                return;
            }
            self.slashes = deepest - 1;
            self.all = self.all.iter().map(|folder| cut(folder, self.slashes).to_owned()).collect();
        }
    }

    fn roots(&self, rules: &LocationRules) -> BTreeSet<Root> {
        // Text that is no folder, such as one with `..`, has no files that anybody deletes.
        self.all.iter().filter_map(|folder| rules.root(folder).ok()).collect()
    }
}

/// The folder above that has at most so many slashes.
fn cut(folder: &str, slashes: usize) -> &str {
    folder.match_indices('/').nth(slashes).map_or(folder, |(at, _)| &folder[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_folders_are_told_by_those_above_them_and_none_is_lost() {
        let rules = LocationRules::default();
        let mut folders = Folders::of(&BTreeSet::new());
        let all: Vec<String> =
            (0..2000).map(|n| format!("s3://wh/db/t{}/data/day={}/hour={n}", n % 7, n % 300)).collect();
        for folder in &all {
            folders.add(folder);
        }
        let roots = folders.roots(&rules);
        assert!(roots.len() <= FOLDERS, "{}", roots.len());
        for folder in &all {
            let folder = rules.root(folder).unwrap();
            assert!(roots.iter().any(|root| root.covers(&folder)), "{folder}");
        }
        // As coarse as needed, and no coarser.
        assert!(roots.iter().all(|root| root.as_str().starts_with("s3://wh/db/t")), "{roots:?}");
    }
}
