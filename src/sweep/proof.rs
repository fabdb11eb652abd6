//! The second proof: nothing that the table reaches now, or that its metadata names, is a marked file
//! (safety rules 11 and 17).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use uuid::Uuid;

use super::{Borders, Marked, eligible, neighbours, orphan_neighbours, orphans, unknown_reader};
use crate::apply::{Hands, Work};
use crate::catalog::LoadedTable;
use crate::catalog::metadata;
use crate::clock::Clock;
use crate::config::OutsideLocation;
use crate::error::Error;
use crate::inventory::keys::Keys;
use crate::inventory::manifests::ManifestRef;
use crate::inventory::reach::{Reached, Reader, Scope};
use crate::inventory::referenced;
use crate::model::file::checksummed;
use crate::model::{FileKind, Fingerprint, LocationRules, Root, TableName};
use crate::plan::KeptObject;
use crate::plan::orphans::OrphanFacts;
use crate::plan::roots::Place;
use crate::plan::{KeptFile, cleanup};
use crate::report::Because;
use crate::state::{Entry, Retained};

/// How long a proof holds, in boot time. After that the pointer is read again.
const VALID_MS: u64 = 60_000;

/// What is referenced now, as far as it was not retained at the first proof already.
#[derive(Debug)]
pub(super) struct Proof {
    referenced: HashSet<Fingerprint>,
    /// Marks whose key something names under another authority.
    conflicts: HashSet<String>,
    keys: Keys,
    place: Place,
    /// Folders of other tables when the proof was made.
    all_others: BTreeSet<Root>,
    counted: Counted,
    /// Marked files whose checksum file may be marked too.
    checksummed: HashSet<String>,
    /// Manifests that need not be read again, by full path and length.
    known: HashMap<String, u64>,
    retained: Vec<Retained>,
    /// The tables it was made on, with their metadata files: this one and its neighbours.
    tables: Vec<(TableName, Option<Uuid>, String)>,
    made_at: u64,
}

/// What counts as referenced.
#[derive(Debug)]
pub(super) enum Counted {
    /// Of what an expiry freed: what readers of the snapshots open.
    Live,
    /// Of orphans: whatever anything names.
    Any {
        /// What else keeps a marked orphan.
        facts: Box<OrphanFacts>,
        /// Commits that are not the table's state, not yet or not any more.
        protecting: Vec<LoadedTable>,
    },
}

impl Proof {
    /// Makes the proof on the newest metadata, which was loaded at `made_at` in boot time. Manifests retained at the
    /// first proof are skipped: none of their entries can be a mark.
    pub(super) async fn begin(
        work: &Work<'_>,
        current: &LoadedTable,
        place: Place,
        counted: Counted,
        retained: Vec<Retained>,
        marked: &[Marked],
        made_at: u64,
    ) -> Result<Self, Error> {
        let known = retained
            .iter()
            .filter(|manifest| manifest.length > 0)
            .map(|manifest| (manifest.location.clone(), manifest.length))
            .collect();
        let locations = marked.iter().map(|marked| marked.entry.location.as_str());
        let of = |marked: &Marked| checksummed(marked.location.canonical());
        let wanted: HashSet<String> = marked.iter().filter_map(of).collect();
        let is_wanted = |marked: &&Marked| wanted.contains(marked.location.canonical());
        let checksummed =
            marked.iter().filter(is_wanted).map(|marked| marked.location.canonical().to_owned()).collect();
        let mut proof = Self {
            referenced: HashSet::new(),
            conflicts: HashSet::new(),
            keys: Keys::of(locations, work.hands.storage.rules()),
            all_others: place.others.clone(),
            place,
            counted,
            checksummed,
            known,
            retained,
            tables: Vec::new(),
            made_at,
        };
        let mut all = vec![current.clone()];
        match &proof.counted {
            Counted::Live => all.extend(neighbours(work, &current.name, &proof.place, Borders::Known).await?),
            Counted::Any { protecting, .. } => {
                all.extend(protecting.iter().cloned());
                all.extend(orphan_neighbours(work, &current.name, &proof.place).await?);
                let rules = work.storage.rules();
                for hint in referenced::version_hints(&proof.place.roots) {
                    let _ = rules.fingerprints(&hint, |form| _ = proof.referenced.insert(form));
                }
            }
        }
        for (at, table) in all.iter().enumerate() {
            proof.add(work, table).await?;
            // A former state of the table itself, kept for an open finding, never changes.
            if at == 0 || table.name != current.name {
                proof.tables.push((table.name.clone(), table.state.uuid, table.metadata_location.clone()));
            }
        }
        Ok(proof)
    }

    /// The manifests of the first proof.
    pub(super) fn retained(&self) -> &[Retained] {
        &self.retained
    }

    /// How long the proof has held, in boot time.
    pub(super) fn age_ms(&self) -> u64 {
        Clock::boot_ms().saturating_sub(self.made_at)
    }

    /// Makes sure that the proof still holds: after its time the pointers are read again, and what is new since
    /// counts as referenced too. A table that was replaced, or that forbids maintenance now, ends it.
    pub(super) async fn renew(&mut self, work: &Work<'_>) -> Result<(), Error> {
        if self.age_ms() < VALID_MS {
            return Ok(());
        }
        let made_at = Clock::boot_ms();
        self.renew_neighbours(work).await?;
        for (at, (name, uuid, metadata_location)) in self.tables.clone().into_iter().enumerate() {
            let loaded = work.load_any(&name).await?;
            if loaded.state.uuid != uuid || (uuid == Some(work.uuid) && !loaded.state.gc_enabled()) {
                return Err(Error::Changed { table: name });
            }
            if loaded.metadata_location != metadata_location {
                self.add(work, &loaded).await?;
                self.tables[at] = (name, uuid, loaded.metadata_location);
            }
        }
        self.made_at = made_at;
        Ok(())
    }

    /// Deletes may go on for hours: a table that was registered, cloned or given files of this one meanwhile counts for
    /// orphans too. What makes the table's folders shared, or cannot be read, ends it.
    async fn renew_neighbours(&mut self, work: &Work<'_>) -> Result<(), Error> {
        let (Counted::Any { .. }, Some((name, ..))) = (&self.counted, self.tables.first().cloned()) else {
            return Ok(());
        };
        let Hands { config, storage, .. } = work.hands;
        let current = work.load(&name).await?;
        let world = work.world().boxed().await?;
        let Ok(place) = eligible(config, storage.rules(), &current, &world)? else {
            return Err(Error::Changed { table: name });
        };
        let is_new = |other: &&Root| !self.all_others.contains(*other);
        // Another table has its folder in this one's now.
        if place.others.iter().filter(is_new).any(|other| place.roots.iter().any(|root| root.covers(other))) {
            return Err(Error::Changed { table: name });
        }
        let borders = work.borders().boxed().await?;
        if unknown_reader(work, &name, &borders).boxed().await?.is_some() {
            return Err(Error::Changed { table: name });
        }
        for table in neighbours(work, &name, &place, Borders::Fresh).boxed().await? {
            let is_known = self.tables.iter().any(|(known, ..)| *known == table.name);
            if !is_known && table.name != name {
                self.add(work, &table).await?;
                self.tables.push((table.name.clone(), table.state.uuid, table.metadata_location.clone()));
            }
        }
        Ok(())
    }

    /// Adds all that this table refers to.
    async fn add(&mut self, work: &Work<'_>, table: &LoadedTable) -> Result<(), Error> {
        let rules = work.storage.rules();
        let (referenced, conflicts, keys) = (&mut self.referenced, &mut self.conflicts, &self.keys);
        let mut refer = |location: &str| {
            // Text that is no location is nobody's mark.
            let _ = rules.fingerprints(location, |form| _ = referenced.insert(form));
            conflicts.extend(keys.conflicts(location, rules));
        };
        // Every text in the metadata that is a location: lists, statistics, logged files, whatever a later
        // version of the format may add.
        metadata::each_string(&table.metadata, &mut refer)?;
        refer(&table.metadata_location);
        let reader = Reader::new(table.storage.clone(), 0, Arc::clone(&work.hands.progress));
        let known = &self.known;
        let skip = |manifest: &ManifestRef| known.get(&manifest.location) == Some(&manifest.length);
        let read = match self.counted {
            Counted::Live => {
                let snapshots = &table.state.snapshots;
                reader.reach(snapshots, Scope::Live, skip, |reached: Reached<'_>| refer(reached.location)).await?
            }
            Counted::Any { .. } => {
                referenced::each(&reader, table, &BTreeSet::new(), skip, |location, _| refer(location)).await?
            }
        };
        for manifest in read.iter().filter(|manifest| manifest.length > 0) {
            self.known.insert(manifest.location.clone(), manifest.length);
        }
        Ok(())
    }

    /// Sorts marks into those that may go, in the order of deletion, and those that may not, each with its reason.
    pub(super) fn sort(
        &self,
        marked: Vec<Marked>,
        by_hand: &BTreeSet<String>,
        outside: OutsideLocation,
        rules: &LocationRules,
    ) -> (Vec<Marked>, Vec<(Marked, Because)>) {
        let (mut doomed, mut spared) = (Vec::new(), Vec::new());
        for marked in marked {
            match self.spares(&marked, by_hand, outside, rules) {
                Some(because) => spared.push((marked, because)),
                None => doomed.push(marked),
            }
        }
        doomed.sort_by(|left, right| {
            (left.entry.kind, left.location.canonical()).cmp(&(right.entry.kind, right.location.canonical()))
        });
        (doomed, spared)
    }

    /// The marked file that this marked file has the checksum of.
    fn checksummed(&self, marked: &Marked, rules: &LocationRules) -> Option<Marked> {
        let of = checksummed(marked.location.canonical())?;
        let location = rules.parse(&of).ok().filter(|_| self.checksummed.contains(&of))?;
        Some(Marked { entry: Entry { location: of, ..marked.entry.clone() }, location })
    }

    fn spares(
        &self,
        marked: &Marked,
        by_hand: &BTreeSet<String>,
        outside: OutsideLocation,
        rules: &LocationRules,
    ) -> Option<Because> {
        if self.referenced.contains(&Fingerprint::of(marked.location.canonical())) {
            return Some(Because::ReferencedAgain);
        }
        if self.conflicts.contains(marked.location.canonical()) {
            return Some(Because::Kept(KeptFile::OtherAuthority));
        }
        if let Counted::Any { facts, .. } = &self.counted {
            if by_hand.contains(marked.location.canonical()) {
                return Some(Because::Kept(KeptFile::ByHand));
            }
            let spared = orphans::spares(marked, facts, rules);
            if spared == Some(Because::NoOrphan(KeptObject::Hidden))
                && let Some(of) = self.checksummed(marked, rules)
            {
                // A checksum goes with its file, and stays with it.
                return self.spares(&of, by_hand, outside, rules);
            }
            return spared;
        }
        // A metadata file may lie where the table's location was; it is named by nothing but its own folder.
        let outside = if marked.entry.kind == FileKind::Metadata { OutsideLocation::Keep } else { outside };
        cleanup::kept(&marked.location, &self.place, by_hand, outside).map(Because::Kept)
    }
}
