//! All decisions of a plan, and the plan that they make.

use std::collections::HashSet;

use uuid::Uuid;

use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::inventory::spill::{Kept, Object, Sorted, SpillError};
use crate::model::file::checksummed;
use crate::model::{FileKind, Fingerprint, LocationRules, Tally};
use crate::plan::orphans::{DecisionLine, OrphanCounts, OrphanFacts, PlanHash, Unreferenced, Verdict, decide};
use crate::plan::{KeptObject, OrphansPlan};
use crate::report::KeptReport;
use crate::state::ListError;

/// Reasons that are told by name, where they are asked for.
const REASONS: usize = 100_000;

/// All decisions on what nothing refers to.
pub(super) struct Decided {
    pub(super) orphans: Sorted,
    pub(super) counts: OrphanCounts,
    pub(super) kept: Vec<KeptReport>,
}

impl Decided {
    pub(super) fn by(
        mut unreferenced: Kept,
        facts: &OrphanFacts,
        rules: &LocationRules,
        (marked, checksummed_objects): (&HashSet<Fingerprint>, &HashSet<Fingerprint>),
        referenced: Tally,
        memory: u64,
        reasons: bool,
    ) -> Result<Self, SpillError> {
        let mut decided = Self { orphans: Sorted::new(memory), counts: OrphanCounts::default(), kept: Vec::new() };
        decided.counts.listed = referenced;
        decided.counts.kept.insert(KeptObject::Referenced, referenced);
        let mut gone = HashSet::new();
        let mut checksums = Kept::new(memory / 4);
        unreferenced.each(|object| {
            let fingerprint = Fingerprint::of(&object.location);
            let seen = Unreferenced {
                location: &object.location,
                facts: &object.facts,
                is_representable: object.is_representable,
                is_marked: marked.contains(&fingerprint),
            };
            let verdict = decide(&seen, facts, rules);
            if verdict == Verdict::Keep(KeptObject::Hidden) && checksummed(&object.location).is_some() {
                // Known when all others are decided.
                return checksums.add(&object);
            }
            if matches!(verdict, Verdict::Orphan(_)) && checksummed_objects.contains(&fingerprint) {
                gone.insert(fingerprint);
            }
            decided.add(verdict, object, facts, reasons)
        })?;
        checksums.each(|object| {
            let of = checksummed(&object.location).map(|of| Fingerprint::of(&of));
            let goes = of.is_some_and(|of| gone.contains(&of));
            let verdict = if goes { Verdict::Orphan(FileKind::Other) } else { Verdict::Keep(KeptObject::Hidden) };
            decided.add(verdict, object, facts, reasons)
        })?;
        decided.kept.sort_unstable();
        decided.kept.truncate(REASONS);
        Ok(decided)
    }

    fn add(&mut self, verdict: Verdict, object: Object, facts: &OrphanFacts, reasons: bool) -> Result<(), SpillError> {
        self.counts.add(verdict, &object.location, &object.facts, facts.now);
        match verdict {
            Verdict::Orphan(kind) => self.orphans.add(kind, object),
            Verdict::Keep(because) => {
                if reasons && self.kept.len() <= REASONS {
                    self.kept.push(KeptReport { location: object.location, size: object.facts.size, because });
                }
                Ok(())
            }
        }
    }
}

/// The plan with its id, and its decisions, compressed.
pub(super) fn written(
    loaded: &LoadedTable,
    uuid: Uuid,
    facts: OrphanFacts,
    counts: OrphanCounts,
    orphans: &mut Sorted,
) -> Result<(OrphansPlan, Vec<u8>), Error> {
    let failed = |error: std::io::Error| Error::from(ListError::Encode { reason: error.to_string() });
    let mut hash = PlanHash::default();
    let mut packer = zstd::Encoder::new(Vec::new(), 3).map_err(failed)?;
    let mut line = Vec::new();
    orphans.each(|entry| {
        line.clear();
        serde_json::to_writer(&mut line, &DecisionLine::Orphan(entry))?;
        line.push(b'\n');
        hash.add(&line);
        std::io::Write::write_all(&mut packer, &line).map_err(failed)
    })?;
    let plan = hash.finish(&loaded.name, uuid, &loaded.metadata_location, facts, counts)?;
    Ok((plan, packer.finish().map_err(failed)?))
}
