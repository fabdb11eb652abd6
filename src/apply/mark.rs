//! Marks: the files that may go, with the identity that they must still have when they go (safety rule 16).

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde_json::json;
use uuid::Uuid;

use super::{Hands, ListHeader, Work};
use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::failpoint;
use crate::guard::ApprovedOrphans;
use crate::inventory::spill::Sorted;
use crate::model::{FileKind, PlanId, TableName, TableState};
use crate::report::{Job, MarksReport, Outcome, TableReport};
use crate::state::{
    Closed, Entry, FindingKind, Intent, ListFile, ListWriter, MarkList, MarkStatus, Observation, PlansError, Retained,
    Severity,
};
use crate::storage::StorageErrorKind;

/// Makes the files of an intent marks, and closes it, in one transaction.
pub(super) async fn intent(
    work: &Work<'_>,
    intent: &Intent,
    plan: PlanId,
    location: &str,
    state: &TableState,
    report: &mut TableReport,
) -> Result<(), Error> {
    let read = match work.hands.plans.read_list(&intent.candidates).await {
        Ok(reader) => {
            let header: Option<ListHeader> = reader.header().ok();
            reader.read_all().map(|(entries, retained)| (header, entries, retained)).map_err(PlansError::List)
        }
        Err(error) => Err(error),
    };
    // What a proof saw counts only where locations are still compared as it did.
    let rules = work.hands.storage.rules();
    let (entries, retained) = match read {
        Ok((Some(header), entries, retained)) if header.locations == *rules => (entries, retained),
        Ok((_, entries, _)) => (entries, Vec::new()),
        Err(error) if error.is_lost() => return unusable(work, intent, &error.to_string(), report).await,
        Err(error) => return Err(error.into()),
    };
    let entries = identified(work, entries, report).await;
    let mut lists = Vec::new();
    if !entries.is_empty() {
        let proof = Proof { table: &intent.table, uuid: intent.uuid, location, state, plan, job: Job::Expire };
        lists.push(write(work, &proof, |header, at| ListWriter::write_all(header, entries, &retained, at)).await?);
    }
    work.hands.state.mark_intent(&intent.id, &lists, work.now).await?;
    for list in &lists {
        note(work, list, report).await?;
    }
    Ok(())
}

/// Closes an intent whose list or inputs are lost or damaged: nothing is marked, and the table is free again.
pub(super) async fn unusable(
    work: &Work<'_>,
    intent: &Intent,
    reason: &str,
    report: &mut TableReport,
) -> Result<(), Error> {
    let seen = Observation {
        kind: FindingKind::MarksVoid,
        table: intent.table.clone(),
        uuid: Some(intent.uuid),
        ref_name: None,
        severity: Severity::Warning,
        numbers: json!({ "objects": intent.candidates.objects }),
        message: format!("what the expiry of {} freed cannot be marked: {reason}", intent.table),
        advice: "its files were kept; the orphan job finds those that nothing uses".to_owned(),
    };
    work.hands.state.raise(&seen, work.now).await?;
    work.hands.state.close_intent(&intent.id, Closed::NoPredecessor, work.now).await?;
    work.audit("mark", &intent.table, None, "void", &json!({ "intent": intent.id, "reason": reason })).await?;
    report.ended(Outcome::Partial, seen.message);
    Ok(())
}

/// A table at one of its metadata files.
pub(super) struct Table<'a> {
    pub(super) name: &'a TableName,
    pub(super) location: &'a str,
    pub(super) state: &'a TableState,
}

impl<'a> From<&'a LoadedTable> for Table<'a> {
    fn from(table: &'a LoadedTable) -> Self {
        Self { name: &table.name, location: &table.metadata_location, state: &table.state }
    }
}

/// Marks metadata files that no commit stands behind: those that fell off the log of a catalog whose client
/// removes them, and those written for a commit that was lost. The second proof keeps what the table names.
pub(super) async fn loose_files(
    work: &Work<'_>,
    table: &Table<'_>,
    files: &[String],
    why: &str,
    report: &mut TableReport,
) -> Result<(), Error> {
    let Some(uuid) = table.state.uuid else { return Ok(()) };
    let entries = files.iter().map(|file| Entry {
        kind: FileKind::Metadata,
        location: file.clone(),
        facts: None,
        recorded_size: None,
    });
    let entries = identified(work, entries.collect(), report).await;
    if entries.is_empty() {
        return Ok(());
    }
    let plan = PlanId::from_hash(&[0; 32]);
    let Table { name, location, state } = *table;
    let proof = Proof { table: name, uuid, location, state, plan, job: Job::Expire };
    let list = write(work, &proof, |header, at| ListWriter::write_all(header, entries, &[], at)).await?;
    work.hands.state.create_marks(&list).await?;
    tracing::debug!(table = %table.name, list = %list.id, why, "marked metadata files");
    note(work, &list, report).await
}

/// Marks orphans, and tells their list. `retained` has the manifests that were read for the proof.
pub async fn orphans(
    work: &Work<'_>,
    approved: &ApprovedOrphans,
    entries: &mut Sorted,
    (table, retained): (&LoadedTable, &[Retained]),
    report: &mut TableReport,
) -> Result<(), Error> {
    let plan = approved.plan();
    if plan.counts.orphans.objects == 0 {
        return Ok(());
    }
    let proof = Proof {
        table: &plan.table,
        uuid: plan.uuid,
        location: &table.metadata_location,
        state: &table.state,
        plan: plan.id,
        job: Job::Orphans,
    };
    let list = write(work, &proof, |header, at| {
        let mut writer = ListWriter::new(header)?;
        entries.each(|entry| Ok::<_, Error>(writer.entry(entry)?))?;
        for manifest in retained {
            writer.retained(manifest)?;
        }
        Ok::<_, Error>(writer.finish(at)?)
    });
    let list = list.await?;
    failpoint::pass("before-orphan-marks").await;
    work.hands.state.create_marks(&list).await?;
    note(work, &list, report).await
}

/// The metadata that the proof was made on, and what it is a proof for.
struct Proof<'a> {
    table: &'a TableName,
    uuid: Uuid,
    location: &'a str,
    state: &'a TableState,
    plan: PlanId,
    job: Job,
}

/// Asks the store what each file is now. One that is gone needs no mark; one that cannot be asked for is marked
/// without an identity, and is then only tested for being newer than the mark.
async fn identified(work: &Work<'_>, entries: Vec<Entry>, report: &mut TableReport) -> Vec<Entry> {
    let storage = &work.storage;
    let asked: Vec<Option<Entry>> = stream::iter(entries)
        .map(|entry| async move {
            match storage.head(&entry.location).await {
                Ok(facts) => Some(Entry { facts: Some(facts), ..entry }),
                Err(error) if error.kind == StorageErrorKind::NotFound => None,
                Err(_) => Some(entry),
            }
        })
        .buffered(storage.concurrency())
        .collect()
        .await;
    report.counts.already_gone += asked.iter().filter(|entry| entry.is_none()).count() as u64;
    asked.into_iter().flatten().collect()
}

/// Writes the list file of new marks, by a function that gets its header and location.
async fn write<E>(
    work: &Work<'_>,
    proof: &Proof<'_>,
    list: impl FnOnce(&ListHeader, &str) -> Result<(Bytes, ListFile), E>,
) -> Result<MarkList, Error>
where
    Error: From<E>,
{
    let id = work.hands.state.new_mark_id().await?;
    let name = format!("marks/{id}.zst");
    let location = work.hands.plans.location(&name)?;
    let header = ListHeader {
        id: id.clone(),
        table: proof.table.full(),
        uuid: proof.uuid,
        metadata_location: proof.location.to_owned(),
        locations: work.hands.storage.rules().clone(),
    };
    // Not the time at which the run began: the last of many tables must have its whole grace period too.
    let created_at = work.hands.clock.now();
    let (bytes, list) = list(&header, &location)?;
    work.hands.plans.write(&name, bytes).await?;
    let Hands { config, .. } = work.hands;
    let grace = if proof.job == Job::Orphans { config.orphans.grace } else { config.expire.grace };
    Ok(MarkList {
        id,
        table: proof.table.clone(),
        uuid: proof.uuid,
        run: work.run.clone(),
        plan: proof.plan,
        job: proof.job.as_str().to_owned(),
        created_at,
        due_at: created_at.plus(grace),
        metadata_location: proof.location.to_owned(),
        last_sequence_number: proof.state.last_sequence_number,
        last_updated: proof.state.last_updated,
        list,
        status: MarkStatus::Open,
        note: None,
        closed_at: None,
    })
}

async fn note(work: &Work<'_>, list: &MarkList, report: &mut TableReport) -> Result<(), Error> {
    report.counts.marked_objects += list.list.objects;
    report.counts.marked_bytes += list.list.bytes;
    report.marks.push(MarksReport {
        id: list.id.clone(),
        objects: list.list.objects,
        bytes: list.list.bytes,
        due_at: list.due_at,
        grace: list.due_at.since(list.created_at),
    });
    let detail =
        json!({ "marks": list.id, "objects": list.list.objects, "bytes": list.list.bytes, "due_at": list.due_at });
    work.audit("mark", &list.table, Some(list.plan), "done", &detail).await
}
