//! The sweep: the only code that deletes objects.
//!
//! It takes marks whose grace period is over, proves a second time, on the newest metadata, that nothing refers
//! to them, asks the store whether they are still the objects that were marked, and deletes: content first, then
//! manifests, lists, statistics. What must be kept loses its mark; what could not be deleted keeps it.

mod delete;
mod neighbours;
mod obstacle;
mod orphans;
mod proof;

use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use crate::apply::{Hands, ListHeader, Work, settle};
use crate::catalog::LoadedTable;
use crate::catalog::metadata;
use crate::clock::Clock;
use crate::error::Error;
use crate::failpoint;
use crate::guard::{MAX_CLOCK_SKEW, Refusal};
use crate::inventory::world::World;
use crate::model::{Age, Location, TableName, TableRoots, Timestamp};
use crate::plan::roots::Place;
use crate::report::{Because, Job, Outcome, SweepReport, TableReport};
use crate::state::{
    AuditRow, Entry, FindingKind, MarkList, MarkStatus, Observation, PlansError, Severity, State, StateError,
};
use crate::storage::StorageErrorKind;
use proof::Proof;

pub use neighbours::{Borders, forked, neighbours, orphan_neighbours, unknown_reader};
pub use obstacle::{Obstacle, alone, eligible, encrypted, exclusive, shared_by, shared_folders};

/// Whether a sweep acts or only looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Delete.
    Apply,
    /// Stop after the second proof.
    Look,
}

/// Files that a report names, of those that were not deleted.
const EXAMPLES: usize = 20;

/// Where the table of marks or of an intent is now, by its uuid: it may have been renamed.
pub fn find<'w>(uuid: Uuid, known_as: &TableName, world: &'w World) -> Option<&'w TableRoots> {
    let of_uuid = || world.roots.iter().filter(|roots| roots.uuid == Some(uuid));
    of_uuid().find(|roots| roots.table == *known_as).or_else(|| of_uuid().next())
}

/// The table as it is now, if it may be swept now: it is the one that the lease is on, and neither its properties
/// nor other tables forbid it.
async fn sweepable(
    work: &Work<'_>,
    name: &TableName,
    report: &mut TableReport,
) -> Result<Option<(LoadedTable, Place)>, Error> {
    let current = work.load(name).await?;
    if current.state.uuid != Some(work.uuid) {
        report.ended(Outcome::Failed, "the table's name was given to another table meanwhile; run it again");
        return Ok(None);
    }
    report.uuid = current.state.uuid;
    let Hands { config, storage, .. } = work.hands;
    match eligible(config, storage.rules(), &current, &*work.world().await?)? {
        Ok(place) => Ok(Some((current, place))),
        Err(Obstacle::Encrypted) => Err(encrypted(&current).into()),
        Err(Obstacle::GcDisabled) => {
            report.ended(Outcome::Skipped, format!("{}; its marks wait", Obstacle::GcDisabled));
            Ok(None)
        }
        Err(Obstacle::Shared(shared)) => {
            report.ended(Outcome::Skipped, shared.to_string());
            Ok(None)
        }
    }
}

/// Settles the open intents of one table and sweeps its due lists.
pub async fn table(work: &mut Work<'_>, name: &TableName, mode: Mode, report: &mut TableReport) -> Result<(), Error> {
    let Some((current, _)) = sweepable(work, name, report).await? else { return Ok(()) };
    work.storage = current.storage.clone();
    if mode == Mode::Apply {
        settle::open_intents(work, &current, report).await?;
    }
    if let Some(finding) = unplanned_removal(&work.hands.state, work.uuid, work.now).await? {
        report.ended(Outcome::Refused, format!("finding {finding} is open: a commit removed what it should not have"));
        report.advice = Some(format!("icewarden findings; icewarden findings ack {finding} --until DATE"));
        return Ok(());
    }
    if let Some((of, skew)) = work.clock_skew(&current.state.location).await?
        && skew.0.abs() > MAX_CLOCK_SKEW.0
    {
        report.ended(Outcome::Refused, Refusal::ClockSkew { of, skew: Age(skew.0.abs()) }.to_string());
        return Ok(());
    }
    let mut lists = work.hands.state.due_marks(work.hands.clock.now()).await?;
    lists.retain(|list| list.uuid == work.uuid);
    for list in lists {
        match one_list(work, name, &list, mode, report).await {
            Ok(()) => {}
            // What concerns this list alone leaves the others.
            Err(error @ Error::Plans(_)) => report.ended(Outcome::Failed, error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Marks a list void because its table is not there any more.
pub async fn void(
    state: &State,
    list: &MarkList,
    reason: &str,
    now: Timestamp,
    report: &mut TableReport,
) -> Result<(), Error> {
    state.close_marks(&list.id, MarkStatus::Void, reason, now).await?;
    let seen = Observation {
        kind: FindingKind::MarksVoid,
        table: list.table.clone(),
        uuid: Some(list.uuid),
        ref_name: None,
        severity: Severity::Warning,
        numbers: json!({ "objects": list.list.objects, "bytes": list.list.bytes }),
        message: format!("marks {} of {} are void: {reason}", list.id, list.table),
        advice: "its files were kept; the orphan job finds those that nothing uses".to_owned(),
    };
    state.raise(&seen, now).await?;
    let row = AuditRow {
        at: now,
        actor: "icewarden".to_owned(),
        action: "sweep".to_owned(),
        catalog: Some(list.table.catalog.clone()),
        table: Some(list.table.clone()),
        plan: Some(list.plan),
        run: None,
        outcome: "void".to_owned(),
        detail: json!({ "void": list.id, "reason": reason }).to_string(),
    };
    state.append_audit(&row).await?;
    report.sweeps.push(SweepReport { void: Some(reason.to_owned()), ..swept(list) });
    report.ended(Outcome::Partial, format!("marks {} are void: {reason}", list.id));
    Ok(())
}

fn swept(list: &MarkList) -> SweepReport {
    SweepReport {
        id: list.id.clone(),
        marked: list.list.objects,
        void: None,
        deleted: 0,
        deleted_bytes: 0,
        would_delete: 0,
        would_delete_bytes: 0,
        not_deleted: Vec::new(),
    }
}

async fn one_list(
    work: &mut Work<'_>,
    name: &TableName,
    list: &MarkList,
    mode: Mode,
    report: &mut TableReport,
) -> Result<(), Error> {
    let state = work.hands.state.clone();
    let read = match work.hands.plans.read_list(&list.list).await {
        Ok(reader) => {
            let header: Option<ListHeader> = reader.header().ok();
            reader.read_all().map(|(entries, retained)| (header, entries, retained)).map_err(PlansError::List)
        }
        Err(error) => Err(error),
    };
    let (header, entries, retained) = match read {
        Ok(read) => read,
        // A lost or damaged list is void; a store that does not answer is no reason to give the marks up.
        Err(error) if error.is_lost() && mode == Mode::Apply => {
            return void(&state, list, &error.to_string(), work.now, report).await;
        }
        Err(error) => return Err(error.into()),
    };
    // Entries were parsed when they were marked.
    let rules = work.hands.storage.rules().clone();
    let parse = |entry: Entry| rules.parse(&entry.location).ok().map(|location| Marked { entry, location });
    let marked: Vec<Marked> = entries.into_iter().filter_map(parse).collect();
    // Orphans are looked for in a new listing, which must have ended before the metadata is loaded (safety rule 1).
    let is_orphans = list.job == Job::Orphans.as_str();
    let look = if is_orphans {
        let Some((before, place)) = sweepable(work, name, report).await? else { return Ok(()) };
        Some(orphans::Look::at(work, &before, &place, &marked).boxed().await?)
    } else {
        None
    };
    // The proof is as old as the load that it is made on.
    let made_at = Clock::boot_ms();
    let Some((current, place)) = sweepable(work, name, report).await? else { return Ok(()) };
    work.storage = current.storage.clone();
    if let Err(reason) = is_later(work, list, &current).await {
        if mode == Mode::Apply {
            return void(&state, list, &reason, work.now, report).await;
        }
        report.sweeps.push(SweepReport { void: Some(reason), ..swept(list) });
        return Ok(());
    }
    let counted = match &look {
        None => proof::Counted::Live,
        Some(look) => match look.facts(work, &current, &place, report).boxed().await? {
            Some((facts, loose)) => proof::Counted::Any { facts: Box::new(facts), protecting: loose.protecting },
            None => return Ok(()),
        },
    };
    // Where locations are compared in another way than at the first proof, what that proof saw proves nothing.
    let retained = if header.is_some_and(|header| header.locations == rules) { retained } else { Vec::new() };
    let mut swept = swept(list);
    let mut proof = Proof::begin(work, &current, place, counted, retained, &marked, made_at).await?;
    let by_hand = work.kept_by_hand().await?;
    let (doomed, spared) = proof.sort(marked, &by_hand, work.hands.config.expire.outside_location, &rules);

    let mut told = Vec::new();
    let mut left: Vec<Entry> = Vec::new();
    for (marked, because) in spared {
        if because == Because::Kept(crate::plan::KeptFile::ByHand) {
            // Released again, it goes with the next sweep.
            left.push(marked.entry.clone());
        }
        told.push((marked.entry.location, because));
    }
    if mode == Mode::Look {
        swept.would_delete = doomed.len() as u64;
        swept.would_delete_bytes = doomed.iter().map(|marked| marked.entry.size()).sum();
        note(told, &mut swept, report);
        report.sweeps.push(swept);
        return Ok(());
    }
    let listed = look.map(|look| look.listed);
    let deleted = delete::all(work, &mut proof, name, list, (doomed, listed), &mut told, &mut left).await;
    report.is_untouched &= deleted.objects == 0;
    failpoint::pass("after-sweep").await;
    // What was done is written down even if the sweep was stopped in the middle.
    let (objects, bytes, stopped) = (deleted.objects, deleted.bytes, deleted.stopped);
    report.counts.deleted_objects += objects;
    report.counts.deleted_bytes += bytes;
    (swept.deleted, swept.deleted_bytes) = (objects, bytes);
    left.extend(deleted.untouched);
    close(work, list, &left, &told, objects, bytes, proof.retained()).await?;
    note(told, &mut swept, report);
    report.sweeps.push(swept);
    match stopped {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A marked object with its location understood.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    entry: Entry,
    location: Location,
}

/// Counts what was not deleted, and names some of it.
fn note(told: Vec<(String, Because)>, swept: &mut SweepReport, report: &mut TableReport) {
    let counts = &mut report.counts;
    let mut failure = None;
    for (location, because) in told {
        match &because {
            Because::AlreadyGone => counts.already_gone += 1,
            Because::Changed => counts.changed += 1,
            Because::ReferencedAgain => counts.referenced_again += 1,
            Because::Kept(crate::plan::KeptFile::ByHand) => counts.kept_by_hand += 1,
            Because::Kept(crate::plan::KeptFile::OtherAuthority) => counts.prefix_conflicts += 1,
            Because::Kept(crate::plan::KeptFile::Unrepresentable) => counts.unrepresentable += 1,
            Because::Kept(_) => counts.skipped_outside_location += 1,
            Because::NoOrphan(_) => counts.no_orphans += 1,
            Because::Failed { kind, reason } => {
                counts.failed_deletes += 1;
                if *kind == StorageErrorKind::Denied {
                    failure = Some(format!("access denied: {location}: {reason}"));
                } else {
                    failure.get_or_insert_with(|| format!("{location}: {reason}"));
                }
            }
        }
        if swept.not_deleted.len() < EXAMPLES {
            swept.not_deleted.push(crate::report::NotDeleted { location, because });
        }
    }
    if let Some(failure) = failure {
        let count = report.counts.failed_deletes;
        report.ended(
            Outcome::Partial,
            format!("{count} files could not be deleted and keep their marks; the first: {failure}"),
        );
    }
}

/// Writes what is left of a list, or closes it; and the outcome of every object for the audit log.
async fn close(
    work: &Work<'_>,
    list: &MarkList,
    left: &[Entry],
    told: &[(String, Because)],
    objects: u64,
    bytes: u64,
    retained: &[crate::state::Retained],
) -> Result<(), Error> {
    let Work { hands, now, .. } = work;
    let outcomes = outcomes(work, list, told).await?;
    if left.is_empty() {
        let text = format!("{objects} deleted, {bytes} bytes");
        hands.state.close_marks(&list.id, MarkStatus::Swept, &text, *now).await?;
    } else {
        // Under a new name: the list before stays, so that `why` can tell.
        let name = format!("marks/{}-{}.zst", list.id, Uuid::now_v7().simple());
        let location = hands.plans.location(&name)?;
        let header = ListHeader {
            id: list.id.clone(),
            table: list.table.full(),
            uuid: list.uuid,
            metadata_location: list.metadata_location.clone(),
            locations: hands.storage.rules().clone(),
        };
        let (file, written) = crate::state::ListWriter::write_all(&header, left.to_vec(), retained, &location)?;
        hands.plans.write(&name, file).await?;
        hands.state.update_mark_list(&list.id, &written).await?;
    }
    let detail = json!({
        "marks": list.id, "list": list.list, "outcomes": outcomes,
        "deleted": objects, "bytes": bytes, "left": left.len(), "not_deleted": told.len(),
    });
    let outcome =
        if told.iter().any(|(_, because)| matches!(because, Because::Failed { .. })) { "partial" } else { "done" };
    work.audit("sweep", &list.table, Some(list.plan), outcome, &detail).await
}

/// A line of JSON for each object that was not deleted, compressed; the others of the list were.
async fn outcomes(work: &Work<'_>, list: &MarkList, told: &[(String, Because)]) -> Result<Option<String>, Error> {
    if told.is_empty() {
        return Ok(None);
    }
    let mut lines = Vec::new();
    for (location, because) in told {
        serde_json::to_writer(&mut lines, &json!({ "location": location, "because": because }))?;
        lines.push(b'\n');
    }
    let packed = zstd::encode_all(&lines[..], 3)
        .map_err(|error| crate::state::ListError::Encode { reason: error.to_string() })?;
    let name = format!("sweeps/{}-{}.jsonl.zst", list.id, Uuid::now_v7().simple());
    Ok(Some(work.hands.plans.write(&name, packed.into()).await?))
}

/// Whether the table's metadata is that of the mark's proof, or a later one of the same line: found in the log
/// as far as its files still reach; beyond, sequence number and update time must not be lower (safety rule 16).
async fn is_later(work: &Work<'_>, list: &MarkList, current: &LoadedTable) -> Result<(), String> {
    let rules = work.hands.storage.rules();
    let wanted = rules.parse(&list.metadata_location).map_err(|error| error.to_string())?;
    let is_wanted = |file: &str| rules.parse(file).is_ok_and(|file| file == wanted);
    let mut file = current.metadata_location.clone();
    let mut state = (*current.state).clone();
    loop {
        if is_wanted(&file) || state.metadata_log.iter().any(|entry| is_wanted(&entry.location)) {
            return Ok(());
        }
        let Some(oldest) = state.metadata_log.first().cloned() else { break };
        if oldest.at < list.last_updated {
            return Err(format!(
                "the table's metadata log reaches back before {} and does not name {}: it was restored or replaced since",
                list.last_updated.show(),
                list.metadata_location
            ));
        }
        let Ok((_, read)) = metadata::read(&work.storage, &oldest.location).await else { break };
        if read.metadata_log.first().is_none_or(|older| older.at >= oldest.at) {
            break;
        }
        (file, state) = (oldest.location, read);
    }
    let now = &current.state;
    if now.last_sequence_number < list.last_sequence_number || now.last_updated < list.last_updated {
        return Err(format!("the table's metadata is older than {}: it was restored since", list.metadata_location));
    }
    Ok(())
}

/// An open `unplanned_removal` of the table that nobody has acknowledged.
pub async fn unplanned_removal(state: &State, uuid: Uuid, now: Timestamp) -> Result<Option<String>, StateError> {
    let open = state.open_findings_of(uuid).await?;
    Ok(open
        .into_iter()
        .find(|finding| finding.seen.kind == FindingKind::UnplannedRemoval && !finding.is_acknowledged(now))
        .map(|finding| finding.id))
}
