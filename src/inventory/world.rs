//! Every table of every configured catalog, with its folders: what safety rule 6 is decided on.
//!
//! Folders are remembered by metadata location, so that only changed tables are loaded. A table that cannot
//! be loaded counts with its last known folders; one never loaded with the parent of its metadata folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use tokio::sync::Mutex;

use super::borders;
use super::reach::Progress;
use crate::catalog::{Catalog, CatalogError, ListedTable, LoadedTable};
use crate::clock::Clock;
use crate::model::roots::{root_of_metadata_file, roots_of};
use crate::model::{LocationRules, TableName, TableRoots, Timestamp};
use crate::state::{Plans, PlansError, State, StateError};
use crate::storage::Storage;

/// Tables loaded at once to learn their folders.
const LOADS_IN_FLIGHT: usize = 16;

/// How old a listing may be to count as fresh, in boot time: as old as a proof.
const FRESH_MS: u64 = 60_000;

/// What the catalogs hold.
#[derive(Debug, Default)]
pub struct World {
    /// Every listed table, by name.
    pub tables: Vec<ListedTable>,
    /// Their folders; a table whose folders nothing tells is missing here.
    pub roots: Vec<TableRoots>,
    /// Tables that could not be loaded, with the reason.
    pub unloadable: BTreeMap<TableName, String>,
    /// Catalogs that could not be listed. Their tables count with their last known folders.
    pub unlisted: BTreeMap<String, CatalogError>,
}

/// Lists the catalogs when the last listing is not fresh any more.
#[derive(Debug, Default)]
pub struct Surveyor {
    last: Mutex<Option<(u64, Arc<World>)>>,
    /// Where tables refer to, as of a listing.
    borders: Mutex<Option<(Arc<World>, Arc<borders::Survey>)>>,
}

impl Surveyor {
    /// A listing that is fresh. Tables that ask at the same time share one.
    pub async fn fresh(
        &self,
        catalogs: &[Catalog],
        state: &State,
        rules: &LocationRules,
        now: Timestamp,
    ) -> Result<Arc<World>, SurveyError> {
        let mut last = self.last.lock().await;
        if let Some((made_at, world)) = &*last
            && Clock::boot_ms().saturating_sub(*made_at) < FRESH_MS
        {
            return Ok(Arc::clone(world));
        }
        let made_at = Clock::boot_ms();
        let world = Arc::new(survey(catalogs, state, rules, now).boxed().await?);
        *last = Some((made_at, Arc::clone(&world)));
        Ok(world)
    }

    /// Where the tables of this listing refer to. Tables that ask at the same time share one survey.
    pub async fn borders(
        &self,
        catalogs: &[Catalog],
        world: &Arc<World>,
        (state, plans): (&State, &Plans),
        storage: &Storage,
        progress: &Arc<Progress>,
    ) -> Result<Arc<borders::Survey>, PlansError> {
        let mut last = self.borders.lock().await;
        if let Some((of, survey)) = &*last
            && Arc::ptr_eq(of, world)
        {
            return Ok(Arc::clone(survey));
        }
        let survey = borders::survey(catalogs, world, (state, plans), storage, progress).boxed().await?;
        let survey = Arc::new(survey);
        *last = Some((Arc::clone(world), Arc::clone(&survey)));
        Ok(survey)
    }

    /// Forgets the last listing, so that a new run begins with one of its own.
    pub async fn forget(&self) {
        *self.last.lock().await = None;
        *self.borders.lock().await = None;
    }
}

/// The catalogs, or what is remembered of them, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// A catalog cannot be listed and never was: whether another table shares a folder with one of its
    /// tables cannot be told.
    #[error("{0}; without its tables it cannot be told whether folders are shared, so nothing is deleted anywhere")]
    NeverListed(CatalogError),
    /// The state cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Lists all catalogs and brings what is known of the tables' folders up to date.
async fn survey(
    catalogs: &[Catalog],
    state: &State,
    rules: &LocationRules,
    now: Timestamp,
) -> Result<World, SurveyError> {
    let mut world = World::default();
    for catalog in catalogs {
        let known = known_roots(state, catalog.name(), rules).boxed().await?;
        match catalog.list_tables().boxed().await {
            Ok(tables) => {
                state.note_listed(catalog.name(), now).boxed().await?;
                let listed: BTreeSet<TableName> = tables.iter().map(|table| table.name.clone()).collect();
                state.forget_roots(catalog.name(), &listed).boxed().await?;
                let known: BTreeMap<&TableName, &TableRoots> = known.iter().map(|r| (&r.table, r)).collect();
                let seen: Vec<Seen> = stream::iter(0..tables.len())
                    .map(|at| roots_now(catalog, &tables[at], known.get(&tables[at].name).copied(), rules).boxed())
                    .buffered(LOADS_IN_FLIGHT)
                    .collect()
                    .await;
                for (table, Seen { roots, is_new, failed }) in tables.iter().zip(seen) {
                    if let Some(reason) = failed {
                        world.unloadable.insert(table.name.clone(), reason);
                    }
                    let Some(roots) = roots else { continue };
                    if is_new {
                        state.put_roots(&roots).boxed().await?;
                    }
                    world.roots.push(roots);
                }
                world.tables.extend(tables);
            }
            Err(error) => {
                let was_listed = state.was_listed(catalog.name()).boxed().await?;
                world.add_unlisted(catalog.name(), error, known, was_listed)?;
            }
        }
    }
    Ok(world)
}

impl World {
    /// A catalog that cannot be listed now counts with what was known of it, if it ever was listed.
    pub fn add_unlisted(
        &mut self,
        catalog: &str,
        error: CatalogError,
        known: Vec<TableRoots>,
        was_listed: bool,
    ) -> Result<(), SurveyError> {
        if !was_listed {
            return Err(SurveyError::NeverListed(error));
        }
        self.roots.extend(known);
        self.unlisted.insert(catalog.to_owned(), error);
        Ok(())
    }
}

/// The folders of a catalog's tables as they were last seen.
pub async fn known_roots(state: &State, catalog: &str, rules: &LocationRules) -> Result<Vec<TableRoots>, StateError> {
    let mut known = state.roots(catalog).await?;
    for roots in &mut known {
        // `[locations]` may have changed since they were written down.
        roots.roots =
            roots.roots.iter().map(|root| rules.root(root.as_str()).unwrap_or_else(|_| root.clone())).collect();
    }
    Ok(known)
}

/// What a survey sees of one table.
struct Seen {
    /// Its folders, if anything tells them.
    roots: Option<TableRoots>,
    /// Whether they are new to the state.
    is_new: bool,
    /// Why it could not be loaded.
    failed: Option<String>,
}

async fn roots_now(catalog: &Catalog, table: &ListedTable, known: Option<&TableRoots>, rules: &LocationRules) -> Seen {
    if let (Some(known), Some(location)) = (known, &table.metadata_location)
        && known.metadata_location == *location
    {
        return Seen { roots: Some(known.clone()), is_new: false, failed: None };
    }
    let loaded = catalog.load(&table.name).boxed().await;
    let (roots, is_new) = roots_from(table, loaded.as_ref(), known, rules);
    Seen { roots, is_new, failed: loaded.err().map(|error| error.to_string()) }
}

/// The folders of a table that was just loaded, or could not be, and whether they are new to the state.
pub fn roots_from(
    table: &ListedTable,
    loaded: Result<&LoadedTable, &CatalogError>,
    known: Option<&TableRoots>,
    rules: &LocationRules,
) -> (Option<TableRoots>, bool) {
    let mut metadata_location = table.metadata_location.clone();
    match loaded {
        Ok(loaded) => {
            if let Ok(roots) = roots_of(&loaded.state, &loaded.metadata_location, rules) {
                let seen = TableRoots {
                    table: table.name.clone(),
                    metadata_location: loaded.metadata_location.clone(),
                    uuid: loaded.state.uuid,
                    roots,
                };
                return (Some(seen), true);
            }
            metadata_location = Some(loaded.metadata_location.clone());
        }
        // A REST catalog tells the metadata file only when the table is loaded.
        Err(CatalogError::Metadata { source, .. }) => metadata_location = Some(source.location().to_owned()),
        Err(_) => {}
    }
    if let Some(known) = known {
        return (Some(known.clone()), false);
    }
    let told = metadata_location.and_then(|location| {
        let root = root_of_metadata_file(&location, rules).ok()?;
        Some(TableRoots { table: table.name.clone(), metadata_location: location, uuid: None, roots: [root].into() })
    });
    // Not remembered: the next survey must try to load it again.
    (told, false)
}
