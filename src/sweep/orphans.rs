//! What the second proof of orphans looks at beside that of an expiry: the table's folders once more, and what every
//! decision depends on.
//!
//! Nothing that an expiry marks was there without a snapshot that named it. An orphan never had one, so that whatever
//! may have come to need it since the first proof is looked for again: other tables' metadata in the folder, commits
//! that are not the table's state yet, tables that took files in.

use std::collections::{BTreeSet, HashMap};

use super::{Marked, shared_folders};
use crate::apply::Work;
use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::inventory::found;
use crate::inventory::loose::{self, Loose};
use crate::model::file::is_metadata_file;
use crate::model::{Age, LocationRules, ObjectFacts, Root};
use crate::plan::orphans::{OrphanFacts, Unreferenced, Verdict, decide};
use crate::plan::roots::{Exclusive, Place};
use crate::report::{Because, Outcome, TableReport};

/// A second listing, made before the metadata was loaded.
#[derive(Debug)]
pub(super) struct Look {
    alone: Exclusive,
    found: found::Found,
    /// The metadata file that was current before the listing, where that must be listed.
    before: Option<String>,
    /// Marked objects as they are now, by canonical location.
    pub(super) listed: HashMap<String, ObjectFacts>,
}

impl Look {
    /// Lists the table's folders.
    pub(super) async fn at(
        work: &Work<'_>,
        table: &LoadedTable,
        place: &Place,
        marked: &[Marked],
    ) -> Result<Self, Error> {
        let rules = work.hands.storage.rules();
        let world = work.world().await?;
        let shared = shared_folders(&work.hands.config, rules, &world);
        let alone = super::alone(table, place, &shared, rules)?;
        let wanted: BTreeSet<&str> = marked.iter().map(|marked| marked.location.canonical()).collect();
        let mut listed = HashMap::new();
        let found = found::list(&table.storage, &alone.roots, &place.others, &work.hands.listed, |batch| {
            for object in batch.iter().filter(|object| wanted.contains(object.location())) {
                listed.insert(object.location().to_owned(), object.facts().clone());
            }
            Ok(())
        });
        let found = found.await?;
        let before = rules.parse(&table.metadata_location)?;
        let is_due = is_metadata_file(before.file_name())
            && before.object_path().is_ok()
            && Root::any_contains(&alone.roots, &before)
            && !Root::any_contains(&place.others, &before);
        let before = is_due.then(|| before.canonical().to_owned());
        Ok(Self { alone, found, before, listed })
    }

    /// What the decisions depend on, and the commits whose files count; `None` if nothing may be deleted.
    pub(super) async fn facts(
        &self,
        work: &Work<'_>,
        table: &LoadedTable,
        place: &Place,
        report: &mut TableReport,
    ) -> Result<Option<(OrphanFacts, Loose)>, Error> {
        if let Some(file) = &self.found.other_format {
            let refusal = crate::guard::Refusal::OtherFormat { file: file.clone() };
            report.ended(Outcome::Refused, refusal.to_string());
            return Ok(None);
        }
        let loose = loose::read(&table.storage, &self.found.metadata_files, table, work.now).await?;
        let exclusive = super::exclusive(&work.hands.config, &table.name);
        if let Some((shared, _)) = super::shared_by(&loose, &exclusive, &*work.world().await?) {
            report.ended(Outcome::Skipped, format!("{shared}; its marks wait"));
            return Ok(None);
        }
        if let Some(unknown) = super::unknown_reader(work, &table.name, &*work.borders().await?).await? {
            report.ended(Outcome::Refused, unknown.to_string());
            return Ok(None);
        }
        let forked = super::forked(work, &table.name, &loose).await?;
        if let Some(file) = forked.first() {
            let refusal = crate::guard::Refusal::ForkedLineage { count: forked.len(), file: file.clone() };
            report.ended(Outcome::Refused, refusal.to_string());
            return Ok(None);
        }
        // Safety rule 7: a listing that lacks the metadata file that was there before it is no listing of the table.
        if let Some(before) = &self.before
            && !self.found.metadata_files.iter().any(|(file, _)| file == before)
        {
            let refusal = crate::guard::Refusal::ListingLies { count: 1, file: before.clone() };
            report.ended(Outcome::Refused, refusal.to_string());
            return Ok(None);
        }
        Ok(Some((facts(work, table, &self.alone, place)?, loose)))
    }
}

/// As at the first proof, but for ages, which the mark has passed, and for what only a whole join tells.
fn facts(work: &Work<'_>, table: &LoadedTable, alone: &Exclusive, place: &Place) -> Result<OrphanFacts, Error> {
    let rules = work.hands.storage.rules();
    Ok(OrphanFacts {
        now: work.hands.clock.now(),
        older_than: Age::ZERO,
        metadata_older_than: Age::ZERO,
        ..OrphanFacts::of(&table.state, place, alone, protected(work, rules)?)
    })
}

fn protected(work: &Work<'_>, rules: &LocationRules) -> Result<BTreeSet<Root>, Error> {
    let prefixes = work.hands.config.orphans.protected_prefixes.iter();
    Ok(prefixes.map(|prefix| rules.root(prefix)).collect::<Result<_, _>>()?)
}

/// Why a marked orphan must stay, if it must.
pub(super) fn spares(marked: &Marked, facts: &OrphanFacts, rules: &LocationRules) -> Option<Because> {
    let nothing = ObjectFacts { size: 0, modified: None, etag: None };
    let object = Unreferenced {
        location: marked.location.canonical(),
        facts: marked.entry.facts.as_ref().unwrap_or(&nothing),
        is_representable: true,
        is_marked: false,
    };
    match decide(&object, facts, rules) {
        Verdict::Orphan(_) => None,
        Verdict::Keep(because) => Some(Because::NoOrphan(because)),
    }
}
