//! The orphan job on one table: listing → metadata → join → plan → guard → marks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use super::place::{place_or_skip, skip_shared};
use super::{Lake, RunRequest, no_catalog, stored};
use crate::apply::{Work, lease, mark, settle};
use crate::catalog::LoadedTable;
use crate::config::Mode;
use crate::error::Error;
use crate::failpoint;
use crate::guard::{self, ApprovedOrphans, OrphanGuardFacts};
use crate::inventory::borders;
use crate::inventory::found::{self, Found};
use crate::inventory::loose::{self, Loose};
use crate::inventory::reach::Reader;
use crate::inventory::referenced;
use crate::inventory::spill::{Kept, References, Sorted, SpillError};
use crate::inventory::usage::{self, Usage};
use crate::inventory::world::World;
use crate::model::file::checksummed;
use crate::model::roots::paths_of;
use crate::model::{Age, Fingerprint, LocationRules, Root, RunId, SnapshotId, TableName, Timestamp};
use crate::plan::orphans::{DecisionLine, OrphanCounts, OrphanFacts, PlanHash, Unreferenced, Verdict, decide};
use crate::plan::roots::{Exclusive, NotExclusive, Place};
use crate::plan::{KeptObject, OrphansPlan, roots};
use crate::report::{Job, KeptReport, OrphansReport, Outcome, TableReport};
use crate::state::{FindingKind, ListError, MarkFilter, Observation, Retained, Severity};
use crate::sweep;

mod missing;

/// Reasons that are told by name, where they are asked for.
const REASONS: usize = 100_000;

/// What a run asks of every table.
pub(super) struct Asked<'a> {
    /// The request.
    pub(super) request: &'a RunRequest,
    /// Bytes that one table may take of the memory.
    pub(super) memory: u64,
    /// Only what lies here.
    pub(super) within: Option<Root>,
    /// Where all tables refer to.
    pub(super) borders: Arc<borders::Survey>,
    /// Folders of warehouses and namespaces.
    pub(super) shared: BTreeMap<Root, NotExclusive>,
    /// Catalogs that lost too many tables: how many, of how many.
    pub(super) lost: BTreeMap<String, (usize, usize)>,
}

/// Finds the orphans of one table, and marks them.
pub(super) async fn table(
    lake: &Lake,
    asked: &Asked<'_>,
    run: &RunId,
    now: Timestamp,
    world: &World,
    name: &TableName,
    report: &mut TableReport,
) -> Result<(), Error> {
    let catalog = lake.catalog(&name.catalog).ok_or_else(|| no_catalog(name))?;
    let loaded = catalog.load(name).await?;
    report.uuid = loaded.state.uuid;
    if place_or_skip(&lake.hands, &loaded, world, now, report).await?.is_none() {
        report.advice = catalog.keeps_house().map(str::to_owned);
        return Ok(());
    }
    let Some(uuid) = loaded.state.uuid else { return Ok(()) };
    let limit = asked.request.trigger.limit(&lake.hands.config.policy_for(name));
    let apply = asked.request.apply && limit > Mode::Observe;
    let lease = if apply { lease(&lake.hands.state, uuid, format!("orphan run on {name}")).await? } else { None };
    let mut work = lake.work(catalog, run, &asked.request.actor, now, (uuid, lease), loaded.storage.clone());
    let done = under_lease(&mut work, asked, world, (name, uuid), apply, report).await;
    let swept = match done {
        Ok(()) if apply && limit == Mode::Sweep => sweep_now(&mut work, name, report).await,
        done => done,
    };
    work.end().await?;
    swept
}

/// With a grace of zero a job goes on to its sweep.
async fn sweep_now(work: &mut Work<'_>, name: &TableName, report: &mut TableReport) -> Result<(), Error> {
    if work.hands.config.orphans.grace > Age::ZERO || report.marks.is_empty() || report.outcome > Outcome::Partial {
        return Ok(());
    }
    sweep::table(work, name, sweep::Mode::Apply, report).await
}

async fn under_lease(
    work: &mut Work<'_>,
    asked: &Asked<'_>,
    world: &World,
    (name, uuid): (&TableName, Uuid),
    apply: bool,
    report: &mut TableReport,
) -> Result<(), Error> {
    let before = work.load(name).await?;
    if before.state.uuid != Some(uuid) {
        report.ended(Outcome::Failed, "the table was replaced by another while the run began; run it again");
        return Ok(());
    }
    if apply {
        settle::open_intents(work, &before, report).await?;
        if report.outcome == Outcome::Failed {
            return Ok(());
        }
    }
    let Some(place) = place_or_skip(work.hands, &before, world, work.now, report).await? else { return Ok(()) };
    if let Some(unknown) = sweep::unknown_reader(work, name, &*asked.borders).boxed().await? {
        report.ended(Outcome::Refused, unknown.to_string());
        report.advice = Some("icewarden findings; icewarden findings ack FINDING --until DATE".to_owned());
        return Ok(());
    }
    let rules = work.hands.storage.rules();
    let location = rules.root(&before.state.location)?;
    let alone = roots::exclusive(&place, &location, &asked.shared);
    not_exclusive(work, name, &alone, report).boxed().await?;
    if alone.roots.is_empty() {
        report.ended(Outcome::Skipped, "none of its folders is known to hold nothing but its files");
        return Ok(());
    }

    let progress = &work.hands.listed;
    let listing = (&alone.roots, &place.others);
    let (found, objects) = found::list_into(&work.storage, listing, progress, asked.memory / 4).await?;
    failpoint::pass("after-listing").await;

    // Only now: what was committed while the store was listed counts as referenced (safety rule 1).
    let loaded = work.load(name).await?;
    if loaded.state.uuid != Some(uuid) {
        report.ended(Outcome::Failed, "the table was replaced by another during the run; run it again");
        return Ok(());
    }
    work.storage = loaded.storage.clone();
    let Some(place) = place_or_skip(work.hands, &loaded, world, work.now, report).await? else { return Ok(()) };
    let loose = loose::read(&work.storage, &found.metadata_files, &loaded, work.now).await?;
    if let Some((shared, numbers)) = sweep::shared_by(&loose, &sweep::exclusive(&work.hands.config, name), world) {
        return skip_shared(work.hands, &loaded, &shared, numbers, work.now, report).await;
    }

    let settled: BTreeSet<SnapshotId> = before.state.snapshot_ids();
    let mut seen = Seen::of(&found, asked.memory / 8, rules);
    let (retained, mut tables) = refer(work, &loaded, &place, &loose, &settled, &mut seen).await?;
    let Seen { references, stores, .. } = seen;
    let tops: BTreeSet<Root> = found.roots.difference(&paths_of(&loaded.state, rules)?).cloned().collect();
    let (roots, memory) = (found.roots.clone(), asked.memory / 16);
    let usage = blocking(move || usage::of(references, objects, &roots, &tops, memory)).await?;

    let facts = facts(work, asked, &loaded, &place, &alone, &found, &usage, &loose).await?;
    foreign_folders(work, name, &facts, &usage).boxed().await?;
    let reasons = asked.request.reasons;
    let Usage { unreferenced, checksummed, referenced, missing: unseen, .. } = usage;
    let marked = marked(work, uuid).await?;
    let (given, rules_of, share) = (facts.clone(), rules.clone(), asked.memory / 8);
    let decided = blocking(move || {
        Decided::by(unreferenced, &given, &rules_of, (&marked, &checksummed), referenced, share, reasons)
    });
    let Decided { mut orphans, counts, kept } = decided.await?;

    let (plan, packed) = written(&loaded, uuid, facts, counts, &mut orphans)?;
    report.counts.unknown_age = plan.counts.kept_for(KeptObject::UnknownAge).objects;
    report.counts.unrepresentable = plan.counts.kept_for(KeptObject::Unrepresentable).objects;
    report.counts.kept_by_hand = plan.counts.kept_for(KeptObject::ByHand).objects;
    let left_out = alone.left_out.iter().map(|(root, why)| (root.to_string(), why.to_string())).collect();
    report.orphans =
        Some(OrphansReport { left_out, unknown_metadata: loose.unknown.clone(), kept, ..OrphansReport::of(&plan) });

    let checked = missing::check(work, &loaded, &settled, unseen).await?;
    tables.push(loaded.clone());
    let conflicts = missing::conflicts(work, &tables, &stores, &mut orphans).await?;
    report.counts.prefix_conflicts = conflicts.len() as u64;
    let judged = Judged { found: &found, loose: &loose, checked, conflicts };
    let Some(approved) = approved(work, asked, apply, plan, packed, judged, report).await? else { return Ok(()) };
    if apply {
        mark::orphans(work, &approved, &mut orphans, (&loaded, &retained), report).await?;
    }
    Ok(())
}

/// CPU and disk work; it must not hold up the runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SpillError> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(SpillError::from(std::io::Error::other(error)).into()),
    }
}

/// References while they are collected.
struct Seen<'a> {
    references: References,
    roots: Vec<String>,
    rules: &'a LocationRules,
    /// `scheme://authority` of references; the last one first, since it mostly is the same again.
    stores: Vec<String>,
    failed: Option<SpillError>,
}

impl<'a> Seen<'a> {
    fn of(found: &Found, memory: u64, rules: &'a LocationRules) -> Self {
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
async fn refer(
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

/// What the decisions depend on.
async fn facts(
    work: &Work<'_>,
    asked: &Asked<'_>,
    loaded: &LoadedTable,
    place: &Place,
    alone: &Exclusive,
    found: &Found,
    usage: &Usage,
    loose: &Loose,
) -> Result<OrphanFacts, Error> {
    let config = &work.hands.config;
    let rules = work.hands.storage.rules();
    let inner: Vec<&Root> = place.roots.iter().filter(|root| !found.roots.contains(*root)).collect();
    let own = |folder: &Root| {
        let is_usual =
            |root: &Root| ["data/", "metadata/"].iter().any(|name| *folder.as_str() == format!("{root}{name}"));
        found.roots.iter().any(is_usual) || inner.iter().any(|root| root.covers(folder) || folder.covers(root))
    };
    let is_theirs = |folder: &Root| place.others.iter().any(|other| other.covers(folder));
    let foreign = usage.folders.iter().filter(|(folder, (_, referenced))| *referenced == 0 && !own(folder));
    let protected =
        config.orphans.protected_prefixes.iter().map(|prefix| rules.root(prefix)).collect::<Result<_, _>>()?;
    Ok(OrphanFacts {
        now: work.now,
        older_than: asked.request.older_than.unwrap_or(config.orphans.older_than),
        metadata_older_than: config.orphans.metadata_older_than,
        within: asked.within.clone(),
        by_hand: work.kept_by_hand().await?,
        unused_roots: usage.roots.iter().filter(|(_, used)| used.1 == 0).map(|(root, _)| root.clone()).collect(),
        foreign_folders: foreign.map(|(folder, _)| folder.clone()).filter(|folder| !is_theirs(folder)).collect(),
        unknown_metadata: loose.unknown.iter().map(|(file, _)| file.clone()).collect(),
        ..OrphanFacts::of(&loaded.state, place, alone, protected)
    })
}

/// Fingerprints of what open mark lists of the table name: it waits for the sweep already.
async fn marked(work: &Work<'_>, uuid: Uuid) -> Result<HashSet<Fingerprint>, Error> {
    let rules = work.hands.storage.rules();
    let mut marked = HashSet::new();
    for list in work.hands.state.marks(MarkFilter::Open, None).await?.iter().filter(|list| list.uuid == uuid) {
        match work.hands.plans.read_list(&list.list).await {
            Ok(reader) => {
                let (entries, _) = reader.read_all()?;
                let canonical = entries.iter().filter_map(|entry| rules.canonical(&entry.location).ok());
                marked.extend(canonical.map(|location| Fingerprint::of(&location)));
            }
            // Void, as the sweep will find: its files may be marked anew.
            Err(error) if error.is_lost() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(marked)
}

/// All decisions on what nothing refers to.
struct Decided {
    orphans: Sorted,
    counts: OrphanCounts,
    kept: Vec<KeptReport>,
}

impl Decided {
    fn by(
        mut unreferenced: Kept,
        facts: &OrphanFacts,
        rules: &LocationRules,
        (marked, checksummed_objects): (&HashSet<Fingerprint>, &HashSet<Fingerprint>),
        referenced: crate::model::Tally,
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
            let verdict =
                if goes { Verdict::Orphan(crate::model::FileKind::Other) } else { Verdict::Keep(KeptObject::Hidden) };
            decided.add(verdict, object, facts, reasons)
        })?;
        decided.kept.sort_unstable();
        decided.kept.truncate(REASONS);
        Ok(decided)
    }

    fn add(
        &mut self,
        verdict: Verdict,
        object: crate::inventory::spill::Object,
        facts: &OrphanFacts,
        reasons: bool,
    ) -> Result<(), SpillError> {
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
fn written(
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

/// What else the guard needs.
struct Judged<'a> {
    found: &'a Found,
    loose: &'a Loose,
    checked: missing::Checked,
    conflicts: Vec<(String, String)>,
}

/// Writes the plan down and asks the guard.
async fn approved(
    work: &Work<'_>,
    asked: &Asked<'_>,
    apply: bool,
    plan: OrphansPlan,
    packed: Vec<u8>,
    judged: Judged<'_>,
    report: &mut TableReport,
) -> Result<Option<ApprovedOrphans>, Error> {
    let state = &work.hands.state;
    let (table, uuid, id, bound) = (plan.table.clone(), plan.uuid, plan.id, plan.bound());
    let location = stored::packed_decisions(work, id, packed).await?;
    let confirmed = stored::confirmed(work, asked.request.confirm, Job::Orphans, (&table, uuid)).await?;
    let hold = if apply { state.held(&table).await? } else { None };
    let finding = sweep::unplanned_removal(state, work.uuid, work.now).await?;
    let root = plan.facts.listed.first().map_or_else(String::new, ToString::to_string);
    let header = plan.header.clone();
    forked(work, &table, &judged.loose.forked).await?;
    let facts = OrphanGuardFacts {
        limits: &work.hands.config.guard,
        hold: hold.as_ref(),
        unplanned_removal: finding.as_deref(),
        clock_skew: work.clock_skew(&root).boxed().await?,
        confirmed: &confirmed,
        other_format: judged.found.other_format.as_deref(),
        forked: &judged.loose.forked,
        conflicts: &judged.conflicts,
        unlisted: &judged.checked.unlisted,
        missing: &judged.checked.missing,
        lost_tables: asked.lost.get(&table.catalog).copied(),
    };
    let guarded = guard::approve_orphans(plan, &facts);
    let refusal = guarded.as_ref().err().map(|refused| refused.1.clone());
    let shown = stored::Shown { id, header: &header, location, bound };
    stored::save(work, Job::Orphans, (&table, uuid), shown, refusal.as_ref()).await?;
    if let Some(refusal) = &refusal {
        stored::refused(work, Job::Orphans, &table, refusal, id, report).await?;
    }
    Ok(guarded.ok())
}

async fn forked(work: &Work<'_>, table: &TableName, files: &[String]) -> Result<(), Error> {
    let state = &work.hands.state;
    let Some(first) = files.first() else {
        state.resolve_kind(FindingKind::ForkedLineage, table, Some(work.uuid), work.now).await?;
        return Ok(());
    };
    let seen = Observation {
        kind: FindingKind::ForkedLineage,
        table: table.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Critical,
        numbers: json!({ "files": files.len() }),
        message: format!("{first} comes after a state of {table} that its log does not have"),
        advice:
            "find out whether the table was restored, or is written through two catalogs; while such a file is young, \
                 no orphans are deleted"
                .to_owned(),
    };
    state.raise(&seen, work.now).boxed().await?;
    Ok(())
}

/// A finding for folders that may hold other things than the table's files.
async fn not_exclusive(
    work: &Work<'_>,
    name: &TableName,
    alone: &Exclusive,
    report: &mut TableReport,
) -> Result<(), Error> {
    let state = &work.hands.state;
    let Some((root, why)) = alone.left_out.first_key_value() else {
        state.resolve_kind(FindingKind::NotExclusive, name, Some(work.uuid), work.now).await?;
        return Ok(());
    };
    let seen = Observation {
        kind: FindingKind::NotExclusive,
        table: name.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Warning,
        numbers: json!({ "folders": alone.left_out.keys().collect::<Vec<_>>() }),
        message: format!("{root}, a folder of {name}, {why}; no orphans are looked for in it"),
        advice: "give the table a data or metadata path of its own".to_owned(),
    };
    state.raise(&seen, work.now).boxed().await?;
    report.notes.push(format!("{root} {why}, so no orphans are looked for in it"));
    Ok(())
}

/// A finding for folders that hold nothing of the table.
async fn foreign_folders(work: &Work<'_>, name: &TableName, facts: &OrphanFacts, usage: &Usage) -> Result<(), Error> {
    let state = &work.hands.state;
    let Some(first) = facts.foreign_folders.first() else {
        state.resolve_kind(FindingKind::ForeignFolder, name, Some(work.uuid), work.now).await?;
        return Ok(());
    };
    let of = facts.foreign_folders.iter().filter_map(|folder| usage.folders.get(folder));
    let (objects, bytes) = of.fold((0, 0), |(objects, bytes), (all, _)| (objects + all.objects, bytes + all.bytes));
    let count = facts.foreign_folders.len();
    let seen = Observation {
        kind: FindingKind::ForeignFolder,
        table: name.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Info,
        numbers: json!({ "folders": count, "objects": objects, "bytes": bytes }),
        message: format!(
            "{count} folders of {name}, such as {first}, hold nothing of it; their {objects} files are kept"
        ),
        advice: "if they are rubbish, remove them by hand".to_owned(),
    };
    state.raise(&seen, work.now).boxed().await?;
    Ok(())
}
