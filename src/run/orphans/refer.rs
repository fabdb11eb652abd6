//! Everything that keeps an object, collected for the join.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::apply::Work;
use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::inventory::found::Found;
use crate::inventory::loose::Loose;
use crate::inventory::reach::Reader;
use crate::inventory::referenced;
use crate::inventory::spill::{References, SpillError};
use crate::model::{Fingerprint, LocationRules, SnapshotId};
use crate::plan::roots::Place;
use crate::state::Retained;
use crate::sweep;

/// References while they are collected.
pub(super) struct Seen<'a> {
    pub(super) references: References,
    roots: Vec<String>,
    rules: &'a LocationRules,
    /// `scheme://authority` of references; the last one first, since it mostly is the same again.
    pub(super) stores: Vec<String>,
    failed: Option<SpillError>,
}

impl<'a> Seen<'a> {
    pub(super) fn of(found: &Found, memory: u64, rules: &'a LocationRules) -> Self {
        let roots: Vec<String> = found.roots.iter().map(ToString::to_string).collect();
        Self { references: References::new(memory), roots, rules, stores: Vec::new(), failed: None }
    }

    fn add(&mut self, location: &str, must: bool) {
        // Text that is no location is nobody's name.
        let Ok(canonical) = self.rules.canonical(location) else { return };
        let store = canonical.find("://").and_then(|at| Some(at + 3 + canonical[at + 3..].find('/')?));
        if let Some(store) = store.map(|end| &canonical[..end])
            && !self.stores.iter().any(|known| known == store)
        {
            self.stores.push(store.to_owned());
        }
        // A name that readers understand in several ways need not be listed as it is.
        let is_plain = !canonical.contains(['?', '#']) && canonical.matches("//").count() == 1;
        let must = must && is_plain && self.roots.iter().any(|root| canonical.starts_with(root.as_str()));
        let exact = Fingerprint::of(&canonical);
        let mut failed = None;
        let (references, rules) = (&mut self.references, self.rules);
        let all = rules.fingerprints(location, |form| {
            if let Err(error) = references.add(form, must && form == exact) {
                failed = Some(error);
            }
        });
        debug_assert!(all.is_ok());
        self.failed = failed.or(self.failed.take());
    }
}

/// Collects everything that keeps an object: what the table refers to, its neighbours, its loose metadata files and
/// configured readers. Returns the manifests that were read, and those other tables.
pub(super) async fn refer(
    work: &Work<'_>,
    loaded: &LoadedTable,
    place: &Place,
    loose: &Loose,
    settled: &BTreeSet<SnapshotId>,
    seen: &mut Seen<'_>,
) -> Result<(Vec<Retained>, Vec<LoadedTable>), Error> {
    let reader = Reader::new(work.storage.clone(), 0, Arc::clone(&work.hands.progress));
    let mut tables = sweep::orphan_neighbours(work, &loaded.name, place).await?;
    tables.extend(loose.protecting.iter().cloned());
    let none = BTreeSet::new();
    let mut retained = Vec::new();
    let all = [(loaded, settled)].into_iter();
    let all = all.chain(tables.iter().map(|table| (table, &none)));
    for (table, settled) in all {
        let read =
            referenced::each(&reader, table, settled, |_| false, |location, must| seen.add(location, must)).await?;
        retained.extend(read.iter().map(|manifest| manifest.retained()));
        if let Some(error) = seen.failed.take() {
            return Err(error.into());
        }
    }
    for hint in referenced::version_hints(&place.roots) {
        seen.add(&hint, false);
    }
    retained.sort();
    retained.dedup();
    Ok((retained, tables))
}
