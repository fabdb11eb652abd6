//! A listing joined with what is referred to: which folders are in use, and which objects nothing refers to.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::spill::{self, Kept, Objects, References, SpillError};
use crate::model::file::checksummed;
use crate::model::{Fingerprint, Root, Tally};

/// What the join told.
#[derive(Debug)]
pub struct Usage {
    /// Objects that something refers to.
    pub referenced: Tally,
    /// The others.
    pub unreferenced: Kept,
    /// Each listed folder: all objects in it, and how many of them something refers to.
    pub roots: BTreeMap<Root, (Tally, u64)>,
    /// Folders directly in `tops`, likewise.
    pub folders: BTreeMap<Root, (Tally, u64)>,
    /// Unreferenced objects that have a checksum file beside them which nothing refers to either.
    pub checksummed: HashSet<Fingerprint>,
    /// References that must be listed and are not.
    pub missing: Vec<Fingerprint>,
}

/// Joins. Of the folders in `tops` each folder directly below is looked at by itself. Holds about `memory` bytes in
/// memory, beside one partition of both.
pub fn of(
    references: References,
    objects: Objects,
    roots: &BTreeSet<Root>,
    tops: &BTreeSet<Root>,
    memory: u64,
) -> Result<Usage, SpillError> {
    let mut usage = Usage {
        referenced: Tally::default(),
        unreferenced: Kept::new(memory),
        roots: BTreeMap::new(),
        folders: BTreeMap::new(),
        checksummed: HashSet::new(),
        missing: Vec::new(),
    };
    let roots: Vec<(&Root, bool)> = roots.iter().map(|root| (root, tops.contains(root))).collect();
    let mut of_roots = vec![(Tally::default(), 0_u64); roots.len()];
    let mut folders: HashMap<String, (Tally, u64)> = HashMap::new();
    usage.missing = spill::join(references, objects, |object, is_referenced| {
        let size = object.facts.size;
        let used = u64::from(is_referenced);
        if let Some(at) = roots.iter().position(|(root, _)| object.location.starts_with(root.as_str())) {
            let (root, is_top) = roots[at];
            of_roots[at].0.add(size);
            of_roots[at].1 += used;
            let below = &object.location[root.as_str().len()..];
            if is_top && let Some(slash) = below.find('/').filter(|slash| *slash > 0) {
                let folder = &object.location[..=root.as_str().len() + slash];
                // Without a copy where it is known, as it mostly is.
                if !folders.contains_key(folder) {
                    folders.insert(folder.to_owned(), Default::default());
                }
                if let Some(of_folder) = folders.get_mut(folder) {
                    of_folder.0.add(size);
                    of_folder.1 += used;
                }
            }
        }
        if is_referenced {
            usage.referenced.add(size);
            return Ok(());
        }
        if let Some(of) = checksummed(&object.location) {
            usage.checksummed.insert(Fingerprint::of(&of));
        }
        usage.unreferenced.add(&object)
    })?;
    usage.roots = roots.iter().map(|(root, _)| (*root).clone()).zip(of_roots).collect();
    usage.folders = folders.into_iter().map(|(folder, used)| (Root::of_canonical(folder), used)).collect();
    Ok(usage)
}
