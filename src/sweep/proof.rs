//! The second proof: nothing that the table reaches now, or that its metadata names, is a marked file
//! (safety rules 11 and 17).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Marked;
use crate::apply::Work;
use crate::catalog::LoadedTable;
use crate::catalog::metadata;
use crate::clock::Clock;
use crate::config::OutsideLocation;
use crate::error::Error;
use crate::inventory::reach::{Reached, Reader, Scope};
use crate::model::{FileKind, Fingerprint, TableName};
use crate::plan::cleanup;
use crate::plan::roots::Place;
use crate::report::Because;
use crate::state::Retained;

/// How long a proof holds, in boot time. After that the pointer is read again.
const VALID_MS: u64 = 60_000;

/// What is referenced now, as far as it was not retained at the first proof already.
#[derive(Debug)]
pub(super) struct Proof {
    referenced: HashSet<Fingerprint>,
    place: Place,
    /// Manifests that need not be read again, by full path and length.
    known: HashMap<String, u64>,
    retained: Vec<Retained>,
    /// The tables it was made on, with their metadata files: this one and its neighbours.
    tables: Vec<(TableName, String)>,
    made_at: u64,
}

impl Proof {
    /// Makes the proof on the newest metadata. Manifests retained at the first proof are skipped: none of their
    /// entries can be a mark.
    pub(super) async fn begin(
        work: &Work<'_>,
        current: &LoadedTable,
        place: &Place,
        retained: Vec<Retained>,
    ) -> Result<Self, Error> {
        let known = retained
            .iter()
            .filter(|manifest| manifest.length > 0)
            .map(|manifest| (manifest.location.clone(), manifest.length))
            .collect();
        let mut proof = Self {
            referenced: HashSet::new(),
            place: place.clone(),
            known,
            retained,
            tables: Vec::new(),
            made_at: Clock::boot_ms(),
        };
        proof.add(work, current).await?;
        for neighbour in &place.neighbours {
            // What a neighbour's manifests name was not looked at by the table's own first proof as retained.
            let loaded = work.load_any(neighbour).await?;
            proof.add(work, &loaded).await?;
        }
        Ok(proof)
    }

    /// The manifests of the first proof.
    pub(super) fn retained(&self) -> &[Retained] {
        &self.retained
    }

    /// Makes sure that the proof still holds: after its time the pointers are read again, and what is new since
    /// counts as referenced too.
    pub(super) async fn renew(&mut self, work: &Work<'_>) -> Result<(), Error> {
        if Clock::boot_ms().saturating_sub(self.made_at) < VALID_MS {
            return Ok(());
        }
        let made_at = Clock::boot_ms();
        for (name, metadata_location) in self.tables.clone() {
            let loaded = work.load_any(&name).await?;
            if loaded.metadata_location != metadata_location {
                self.tables.retain(|(known, _)| *known != name);
                self.add(work, &loaded).await?;
            }
        }
        self.made_at = made_at;
        Ok(())
    }

    /// Adds all that this table refers to.
    async fn add(&mut self, work: &Work<'_>, table: &LoadedTable) -> Result<(), Error> {
        let storage = &work.hands.storage;
        let rules = storage.rules();
        let referenced = &mut self.referenced;
        let mut refer = |location: &str| {
            // Text that is no location is nobody's mark.
            let _ = rules.fingerprints(location, |form| _ = referenced.insert(form));
        };
        // Every text in the metadata that is a location: lists, statistics, logged files, whatever a later
        // version of the format may add.
        metadata::each_string(&table.metadata, &mut refer)?;
        refer(&table.metadata_location);
        let reader = Reader::new(storage.clone(), 0, Arc::clone(&work.hands.progress));
        let known = &self.known;
        let read = reader
            .reach(
                &table.state.snapshots,
                Scope::Live,
                |manifest| known.get(&manifest.location) == Some(&manifest.length),
                |reached: Reached<'_>| refer(reached.location),
            )
            .await?;
        for manifest in read.iter().filter(|manifest| manifest.length > 0) {
            self.known.insert(manifest.location.clone(), manifest.length);
        }
        self.tables.push((table.name.clone(), table.metadata_location.clone()));
        Ok(())
    }

    /// Sorts marks into those that may go, in the order of deletion, and those that may not, each with its reason.
    pub(super) fn sort(
        &self,
        marked: Vec<Marked>,
        by_hand: &BTreeSet<String>,
        outside: OutsideLocation,
    ) -> (Vec<Marked>, Vec<(Marked, Because)>) {
        let (mut doomed, mut spared) = (Vec::new(), Vec::new());
        for marked in marked {
            match self.spares(&marked, by_hand, outside) {
                Some(because) => spared.push((marked, because)),
                None => doomed.push(marked),
            }
        }
        doomed.sort_by(|left, right| {
            (left.entry.kind, left.location.canonical()).cmp(&(right.entry.kind, right.location.canonical()))
        });
        (doomed, spared)
    }

    fn spares(&self, marked: &Marked, by_hand: &BTreeSet<String>, outside: OutsideLocation) -> Option<Because> {
        if self.referenced.contains(&Fingerprint::of(marked.location.canonical())) {
            return Some(Because::ReferencedAgain);
        }
        // A metadata file may lie where the table's location was; it is named by nothing but its own folder.
        let outside = if marked.entry.kind == FileKind::Metadata { OutsideLocation::Keep } else { outside };
        cleanup::kept(&marked.location, &self.place, by_hand, outside).map(Because::Kept)
    }
}
