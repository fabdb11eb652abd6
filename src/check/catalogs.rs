//! Catalogs: whether they answer, list and load, and what they say of commits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::{About, CheckItem, some};
use crate::catalog::{Catalog, CatalogError, Committing, ListedTable, LoadedTable};
use crate::clock::Clock;
use crate::config::CatalogConfig;
use crate::inventory::world;
use crate::model::{LocationRules, TableName, TableRoots};
use crate::run;
use crate::state::State;
use crate::storage::Storage;

/// To open a catalog: an answer to one question, with its retries.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// To list the tables of a catalog.
const LIST_LIMIT: Duration = Duration::from_mins(1);
/// To load one table.
const LOAD_LIMIT: Duration = Duration::from_secs(30);
/// To load all tables of a catalog.
const LOADS_LIMIT: Duration = Duration::from_mins(5);
/// Tables loaded at once. When so many did not answer and none did, the others are not asked.
const LOADS_IN_FLIGHT: usize = 16;

/// A table that was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) name: TableName,
    /// Without the bytes of its metadata, which nobody needs any more.
    pub(super) loaded: Result<LoadedTable, CatalogError>,
    /// Its folders, as far as they are known.
    pub(super) roots: Option<TableRoots>,
}

/// A catalog as it showed itself.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) catalog: Catalog,
    pub(super) listed: Result<Vec<ListedTable>, CatalogError>,
    pub(super) committing: Committing,
    /// What the state knows of the folders of its tables, and whether it was ever listed.
    pub(super) known: Vec<TableRoots>,
    pub(super) was_listed: bool,
    pub(super) tables: Vec<Asked>,
    opened_ms: u64,
    listed_ms: u64,
    loaded_ms: u64,
}

/// Opens and lists a catalog.
pub(super) async fn open(config: &CatalogConfig, storage: &Storage) -> Seen {
    let began = Clock::boot_ms();
    let late = |limit: Duration| CatalogError::NotOpen {
        catalog: config.name.clone(),
        reason: format!("catalog {} gives no answer in {} s", config.name, limit.as_secs()),
    };
    let catalog = timeout(OPEN_LIMIT, run::open_catalog(config, storage).boxed())
        .await
        .unwrap_or_else(|_| Catalog::Broken { name: config.name.clone(), reason: late(OPEN_LIMIT).to_string() });
    let opened = Clock::boot_ms();
    let (listed, committing) = tokio::join!(
        async { timeout(LIST_LIMIT, catalog.list_tables().boxed()).await.unwrap_or_else(|_| Err(late(LIST_LIMIT))) },
        async {
            let told = timeout(OPEN_LIMIT, catalog.committing().boxed()).await;
            told.unwrap_or_else(|_| Committing::Refused(late(OPEN_LIMIT).to_string()))
        },
    );
    Seen {
        opened_ms: opened.saturating_sub(began),
        listed_ms: Clock::boot_ms().saturating_sub(opened),
        loaded_ms: 0,
        known: Vec::new(),
        was_listed: false,
        tables: Vec::new(),
        catalog,
        listed,
        committing,
    }
}

impl Seen {
    /// Loads every listed table.
    pub(super) async fn load_tables(&mut self, state: Option<&State>, rules: &LocationRules) {
        if let Some(state) = state {
            let name = self.catalog.name();
            // A state that fails now was told when it was opened, or is told by the tables.
            self.known = world::known_roots(state, name, rules).await.unwrap_or_default();
            self.was_listed = state.was_listed(name).await.unwrap_or_default();
        }
        let Ok(listed) = &self.listed else { return };
        let began = Clock::boot_ms();
        let known: BTreeMap<&TableName, &TableRoots> = self.known.iter().map(|roots| (&roots.table, roots)).collect();
        let (catalog, end) = (&self.catalog, Instant::now() + LOADS_LIMIT);
        let mut loads =
            stream::iter(0..listed.len()).map(|at| load(catalog, &listed[at]).boxed()).buffered(LOADS_IN_FLIGHT);
        let mut tables: Vec<Asked> = Vec::with_capacity(listed.len());
        let mut late = 0;
        while let Ok(Some((loaded, is_late))) = timeout_at(end, loads.next()).await {
            let table = &listed[tables.len()];
            let known = known.get(&table.name).copied();
            let (roots, _) = world::roots_from(table, loaded.as_ref(), known, rules);
            tables.push(Asked { name: table.name.clone(), loaded, roots });
            late += usize::from(is_late);
            if late >= LOADS_IN_FLIGHT && late == tables.len() {
                break;
            }
        }
        drop(loads);
        self.tables = tables;
        self.loaded_ms = Clock::boot_ms().saturating_sub(began);
    }

    /// Listed, but not come to in time.
    pub(super) fn left_out(&self) -> usize {
        self.listed.as_ref().map_or(0, Vec::len) - self.tables.len()
    }

    /// What is to be said of it.
    pub(super) fn items(&self) -> Vec<CheckItem> {
        let name = self.catalog.name();
        let listed = match &self.listed {
            Ok(listed) => listed,
            Err(error) => {
                let advice = format!("correct [[catalog]] {name} (uri, credential, ca_file), or see that it is up");
                return vec![CheckItem::fail(About::Catalog, name, error.to_string(), &advice)];
            }
        };
        let namespaces: BTreeSet<&[String]> = listed.iter().map(|table| table.name.namespace.as_slice()).collect();
        let loaded = self.tables.iter().filter(|table| table.loaded.is_ok()).count();
        let text = format!(
            "{} in {}, {loaded} loaded (opened in {} ms, listed in {} ms, loaded in {} ms)",
            some(listed.len(), "table", "s"),
            some(namespaces.len(), "namespace", "s"),
            self.opened_ms,
            self.listed_ms,
            self.loaded_ms,
        );
        let counts = [("namespaces", namespaces.len()), ("tables", listed.len()), ("loaded", loaded)];
        let found = if loaded == 0 && !listed.is_empty() {
            CheckItem::fail(About::Catalog, name, text, "see what is said of its tables below")
        } else if self.left_out() > 0 {
            let text = format!("{text}; {} not come to in time", self.left_out());
            CheckItem::warn(
                About::Catalog,
                name,
                text,
                "the catalog or its storage is slow: look at them, or check again",
            )
        } else {
            CheckItem::ok(About::Catalog, name, text)
        };
        let found = CheckItem { took_ms: Some(self.opened_ms + self.listed_ms + self.loaded_ms), ..found };
        vec![found.counting(&counts), of_commits(name, &self.committing)]
    }
}

fn of_commits(name: &str, committing: &Committing) -> CheckItem {
    match committing {
        Committing::Offered(why) | Committing::Untold(why) => {
            CheckItem::ok(About::Commit, name, format!("not tried; {why}"))
        }
        Committing::Refused(why) => {
            let advice = "runs can plan here, but not apply; give this user the right to write";
            CheckItem::fail(About::Commit, name, why, advice)
        }
    }
}

/// The table, and whether there was no answer in time.
async fn load(catalog: &Catalog, table: &ListedTable) -> (Result<LoadedTable, CatalogError>, bool) {
    if let Ok(loaded) = timeout(LOAD_LIMIT, catalog.load(&table.name)).await {
        return (loaded.map(|loaded| LoadedTable { metadata: Bytes::new(), ..loaded }), false);
    }
    let reason = format!("no answer in {} s", LOAD_LIMIT.as_secs());
    (Err(CatalogError::BadAnswer { table: table.name.clone(), reason }), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    fn seen(tables: &[(&str, bool)]) -> Seen {
        let name = |text: &str| {
            let (namespace, name) = text.rsplit_once('.').unwrap();
            let namespace = namespace.split('.').map(str::to_owned).collect();
            TableName { catalog: "lake".into(), namespace, name: name.into() }
        };
        let listed = tables.iter().map(|(table, _)| ListedTable { name: name(table), metadata_location: None });
        let asked = tables.iter().filter(|(_, is_asked)| *is_asked).map(|(table, _)| Asked {
            name: name(table),
            loaded: Err(CatalogError::NoSuchTable { table: name(table) }),
            roots: None,
        });
        Seen {
            catalog: Catalog::Broken { name: "lake".into(), reason: String::new() },
            listed: Ok(listed.collect()),
            committing: Committing::Untold("it does not tell"),
            known: Vec::new(),
            was_listed: false,
            tables: asked.collect(),
            opened_ms: 1,
            listed_ms: 2,
            loaded_ms: 3,
        }
    }

    #[test]
    fn a_catalog_is_told_by_what_it_does() {
        let empty = seen(&[]).items();
        assert_eq!(empty[0].status, Status::Ok);
        assert!(empty[0].text.starts_with("0 tables in 0 namespaces, 0 loaded"), "{}", empty[0].text);
        assert_eq!((empty[0].took_ms, empty[1].text.as_str()), (Some(6), "not tried; it does not tell"));

        let failing = seen(&[("a.t", true), ("a.b.t", true), ("a.u", true)]).items();
        assert_eq!(failing[0].status, Status::Fail, "none of them can be loaded");
        assert_eq!(failing[0].counts, [("loaded", 0), ("namespaces", 2), ("tables", 3)].into());

        let broken = Seen {
            listed: Err(CatalogError::NotOpen { catalog: "lake".into(), reason: "closed".into() }),
            ..seen(&[])
        };
        let items = broken.items();
        assert_eq!((items.len(), items[0].status, items[0].text.as_str()), (1, Status::Fail, "closed"));
    }

    #[test]
    fn a_catalog_that_takes_no_commits_fails_and_one_that_does_not_tell_is_fine() {
        for (committing, status) in [
            (Committing::Offered("x"), Status::Ok),
            (Committing::Untold("x"), Status::Ok),
            (Committing::Refused("x".into()), Status::Fail),
        ] {
            assert_eq!(of_commits("lake", &committing).status, status, "{committing:?}");
        }
    }
}
