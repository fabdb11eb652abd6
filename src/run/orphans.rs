//! The orphan job on one table: listing → metadata → join → plan → guard → marks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use uuid::Uuid;

use super::place::{place_or_skip, skip_shared};
use super::{Lake, RunError, RunRequest, TABLES_IN_FLIGHT, failed, no_catalog, selected, stored, unlisted};
use crate::apply::{Hands, Work, lease, mark, settle};
use crate::catalog::Catalog;
use crate::catalog::LoadedTable;
use crate::config::Mode;
use crate::error::Error;
use crate::failpoint;
use crate::guard::{self, ApprovedOrphans, OrphanGuardFacts};
use crate::inventory::found::{self, Found};
use crate::inventory::loose::{self, Loose};
use crate::inventory::spill::SpillError;
use crate::inventory::usage::{self, Usage};
use crate::inventory::world::World;
use crate::inventory::{borders, dropped};
use crate::model::roots::paths_of;
use crate::model::{Age, Fingerprint, Root, RunId, SnapshotId, TableName, Timestamp};
use crate::plan::orphans::OrphanFacts;
use crate::plan::roots::{Exclusive, NotExclusive, Place};
use crate::plan::{KeptObject, OrphansPlan};
use crate::report::{DroppedReport, Job, OrphansReport, Outcome, RunReport, TableReport};
use crate::state::{FindingKind, MarkFilter};
use crate::sweep;

mod decided;
mod findings;
mod missing;
mod refer;

/// What a run asks of every table.
struct Asked<'a> {
    /// The request.
    request: &'a RunRequest,
    /// Bytes that one table may take of the memory.
    memory: u64,
    /// Only what lies here.
    within: Option<Root>,
    /// Where all tables refer to.
    borders: Arc<borders::Survey>,
    /// Folders of warehouses and namespaces.
    shared: BTreeMap<Root, NotExclusive>,
    /// Catalogs that lost too many tables: how many, of how many.
    lost: BTreeMap<String, (usize, usize)>,
}

/// Finds the orphans of all tables that are asked for.
pub(super) async fn all(lake: &Lake, request: &RunRequest, report: &mut RunReport) -> Result<(), RunError> {
    let world = lake.survey().await?;
    unlisted(&world, report);
    let mut tables = selected(&world, &request.tables)?;
    let Hands { config, state, plans, storage, progress, .. } = &lake.hands;
    let rules = storage.rules();
    let within = request.root.as_deref().map(|root| rules.root(root)).transpose().map_err(Error::from)?;
    if let Some(within) = &within {
        let touches = |root: &Root| root.covers(within) || within.covers(root);
        let is_in = |table: &TableName| world.roots.iter().any(|of| of.table == *table && of.roots.iter().any(touches));
        tables.retain(is_in);
        if tables.is_empty() && world.unlisted.is_empty() {
            return Err(RunError::Rejected(format!(
                "{within} lies in no folder of these tables (hint: icewarden storage)"
            )));
        }
    }
    let borders = lake.surveyor.borders(&lake.catalogs, &world, (state, plans), storage, progress);
    let borders = borders.await.map_err(Error::from)?;
    for (table, reason) in &borders.unread {
        report.notes.push(format!(
            "{table} cannot be read, so it is not known whether it has files in others' folders: {reason}"
        ));
    }
    for finding in state.open_findings().await.map_err(Error::from)? {
        if finding.seen.kind == FindingKind::UnreadableTable && !borders.unread.contains_key(&finding.seen.table) {
            state.resolve(&finding.id, report.now).await.map_err(Error::from)?;
        }
    }
    let lost = lost_tables(lake, &world).await?;
    let lost_by = lost.iter().filter(|(_, (gone, had))| guard::lost_too_many(*gone, *had));
    let mut too_many: BTreeMap<String, (usize, usize)> = lost_by.map(|(catalog, n)| (catalog.clone(), *n)).collect();
    if let Some(confirmed) = request.confirm {
        // Somebody who goes on with a plan that was refused for it knows of the loss.
        let plan = state.plan(confirmed).await.map_err(Error::from)?;
        let plan = plan.filter(|plan| stored::was_refused_by(plan, guard::LOST_TABLES));
        too_many.retain(|catalog, _| plan.as_ref().is_none_or(|plan| plan.table.catalog != *catalog));
    }
    let asked = Asked {
        request,
        memory: config.limits.memory / TABLES_IN_FLIGHT.min(tables.len().max(1)) as u64,
        within,
        borders,
        shared: sweep::shared_folders(config, rules, &world),
        lost: too_many,
    };
    let (run, now, seen) = (&report.run, report.now, &*world);
    let done: Vec<TableReport> = stream::iter(tables)
        .map(|table| one(lake, &asked, run, now, seen, table).boxed())
        .buffer_unordered(TABLES_IN_FLIGHT)
        .collect()
        .await;
    report.tables.extend(done);
    if request.tables.is_empty() && request.root.is_none() {
        dropped(lake, &world, report).boxed().await;
    }
    if request.apply {
        for catalog in lost.keys().filter(|catalog| !asked.lost.contains_key(*catalog)) {
            let names = world.tables.iter().map(|table| &table.name).filter(|name| name.catalog == *catalog);
            state.note_orphan_run(catalog, &names.cloned().collect()).await.map_err(Error::from)?;
        }
    }
    Ok(())
}

/// Looks for folders of dropped tables in all warehouses. They are only told of, so that a walk that fails is a note.
async fn dropped(lake: &Lake, world: &World, report: &mut RunReport) {
    let Hands { config, storage, listed, .. } = &lake.hands;
    let known: Vec<&Root> = world.roots.iter().flat_map(|of| &of.roots).collect();
    let mut seen = BTreeSet::new();
    let is_placed = |name: &&TableName| world.roots.iter().any(|of| of.table == **name);
    if let Some(lost) = world.unloadable.keys().find(|name| !is_placed(name)) {
        report.notes.push(format!(
            "dropped tables were not searched for: {lost} cannot be loaded, and its folder is not known"
        ));
        return;
    }
    // What a catalog that cannot be listed holds is not known.
    for catalog in config.catalogs.iter().filter(|_| world.unlisted.is_empty()) {
        let warehouse = catalog.warehouse.as_deref().and_then(|warehouse| storage.rules().root(warehouse).ok());
        let Some(warehouse) = warehouse.filter(|warehouse| seen.insert(warehouse.clone())) else { continue };
        match dropped::find(storage, &warehouse, &known, listed).boxed().await {
            Ok(walk) => {
                let of = |table: dropped::DroppedTable| DroppedReport {
                    catalog: catalog.name.clone(),
                    folder: table.folder.to_string(),
                    held: table.held,
                    metadata_files: table.metadata_files,
                    last_write: table.last_write,
                };
                report.dropped.extend(walk.dropped.into_iter().map(of));
                let left_out = walk.left_out.iter();
                report.notes.extend(
                    left_out.map(|folder| format!("{folder} was not searched for dropped tables: too much is in it")),
                );
            }
            Err(error) => report.notes.push(format!("{warehouse} was not searched for dropped tables: {error}")),
        }
    }
}

async fn one(
    lake: &Lake,
    asked: &Asked<'_>,
    run: &RunId,
    now: Timestamp,
    world: &World,
    table: TableName,
) -> TableReport {
    let mut report = TableReport::new(table.clone());
    if let Err(error) = self::table(lake, asked, run, now, world, &table, &mut report).await {
        failed(&mut report, &error);
    }
    report
}

/// How many tables each listed catalog lost since its last orphan run, of how many.
async fn lost_tables(lake: &Lake, world: &World) -> Result<BTreeMap<String, (usize, usize)>, Error> {
    let mut lost = BTreeMap::new();
    for catalog in lake.catalogs.iter().map(Catalog::name).filter(|name| !world.unlisted.contains_key(*name)) {
        let had = lake.hands.state.tables_at_last_orphan_run(catalog).await?.unwrap_or_default();
        let is_there = |name: &&TableName| world.tables.iter().any(|table| table.name == **name);
        let gone = had.iter().filter(|name| !is_there(name)).count();
        lost.insert(catalog.to_owned(), (gone, had.len()));
    }
    Ok(lost)
}

/// Finds the orphans of one table, and marks them.
async fn table(
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
    if let Some(advice) = catalog.keeps_house() {
        // It has branches that no metadata file tells of.
        report.ended(Outcome::Skipped, "its catalog removes what nothing needs by itself");
        report.advice = Some(advice.to_owned());
        return Ok(());
    }
    if place_or_skip(&lake.hands, &loaded, world, now, report).await?.is_none() {
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
    let rules = work.hands.storage.rules();
    let alone = sweep::alone(&before, &place, &asked.shared, rules)?;
    findings::not_exclusive(work, name, &alone, report).boxed().await?;
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
    if let Some(unknown) = sweep::unknown_reader(work, name, &asked.borders).boxed().await? {
        report.ended(Outcome::Refused, unknown.to_string());
        report.advice = Some("icewarden findings; icewarden findings ack FINDING --until DATE".to_owned());
        return Ok(());
    }

    let settled: BTreeSet<SnapshotId> = before.state.snapshot_ids();
    let mut seen = refer::Seen::of(&found, asked.memory / 8, rules);
    let (retained, mut tables) = refer::refer(work, &loaded, &place, &loose, &settled, &mut seen).await?;
    let refer::Seen { references, stores, .. } = seen;
    let tops: BTreeSet<Root> = found.roots.difference(&paths_of(&loaded.state, rules)?).cloned().collect();
    let (roots, memory) = (found.roots.clone(), asked.memory / 16);
    let usage = blocking(move || usage::of(references, objects, &roots, &tops, memory)).await?;

    let facts = facts(work, asked, &loaded, (&place, &alone), (&found, &usage, &loose)).await?;
    findings::foreign_folders(work, name, &facts, &usage).boxed().await?;
    let reasons = asked.request.reasons;
    let Usage { unreferenced, checksummed, referenced, missing: unseen, .. } = usage;
    let marked = marked(work, uuid).await?;
    let (given, rules_of, share) = (facts.clone(), rules.clone(), asked.memory / 8);
    let decided = blocking(move || {
        decided::Decided::by(unreferenced, &given, &rules_of, (&marked, &checksummed), referenced, share, reasons)
    });
    let decided::Decided { mut orphans, counts, kept } = decided.await?;

    let (plan, packed) = decided::written(&loaded, uuid, facts, counts, &mut orphans)?;
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

/// What the decisions depend on.
async fn facts(
    work: &Work<'_>,
    asked: &Asked<'_>,
    loaded: &LoadedTable,
    (place, alone): (&Place, &Exclusive),
    (found, usage, loose): (&Found, &Usage, &Loose),
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
    let forked = sweep::forked(work, &table, judged.loose).boxed().await?;
    let facts = OrphanGuardFacts {
        limits: &work.hands.config.guard,
        hold: hold.as_ref(),
        unplanned_removal: finding.as_deref(),
        clock_skew: work.clock_skew(&root).boxed().await?,
        confirmed: &confirmed,
        other_format: judged.found.other_format.as_deref(),
        forked: &forked,
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
