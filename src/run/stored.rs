//! Plans as they are written down, and what operators confirmed of them.

use serde_json::json;
use uuid::Uuid;

use crate::apply::Work;
use crate::error::Error;
use crate::guard::Refusal;
use crate::model::{Age, PlanId, TableName};
use crate::report::{Job, Outcome, TableReport};
use crate::state::{Bound, Confirmation, ListError, PlanRecord};

/// How long a confirmation covers plans within its bound (safety rule 8).
const CONFIRMED_FOR: Age = Age::hours(24);

/// A plan that was made and written down.
pub(super) struct Shown<'a> {
    /// Its id.
    pub(super) id: PlanId,
    /// JSON.
    pub(super) header: &'a str,
    /// Of its decisions.
    pub(super) location: String,
    /// What a confirmation allows.
    pub(super) bound: Bound,
}

/// Writes a plan's decisions, and returns where.
pub(super) async fn decisions(work: &Work<'_>, id: PlanId, lines: &[u8]) -> Result<String, Error> {
    let packed = zstd::encode_all(lines, 3).map_err(|error| ListError::Encode { reason: error.to_string() })?;
    packed_decisions(work, id, packed).await
}

/// The same of decisions that are compressed already.
pub(super) async fn packed_decisions(work: &Work<'_>, id: PlanId, packed: Vec<u8>) -> Result<String, Error> {
    let file = format!("plans/{id}-{}.jsonl.zst", Uuid::now_v7().simple());
    Ok(work.hands.plans.write(&file, packed.into()).await?)
}

/// The bounds that operators confirmed for a table, `confirm` among them if it is of this table.
pub(super) async fn confirmed(
    work: &Work<'_>,
    confirm: Option<PlanId>,
    job: Job,
    (table, uuid): (&TableName, Uuid),
) -> Result<Vec<Bound>, Error> {
    if let Some(id) = confirm {
        store(work, id, job, (table, uuid)).await?;
    }
    let known = work.hands.state.confirmations(&table.catalog, uuid, job.as_str(), work.now).await?;
    Ok(known.into_iter().map(|confirmation| confirmation.bound).collect())
}

/// Stores the confirmation of a plan that was shown: any plan within its bound is covered for a day.
async fn store(work: &Work<'_>, id: PlanId, job: Job, (table, uuid): (&TableName, Uuid)) -> Result<(), Error> {
    let Some(record) = work.hands.state.plan(id).await? else { return Ok(()) };
    // It covers its own table and job only; the others of the run go on without it.
    if record.uuid != uuid || record.table != *table || record.job != job.as_str() {
        return Ok(());
    }
    let header: serde_json::Value = serde_json::from_str(&record.header)?;
    let bound: Bound = serde_json::from_value(header["bound"].clone())?;
    let confirmation = Confirmation {
        plan: id,
        table: table.clone(),
        uuid,
        job: job.as_str().to_owned(),
        bound,
        by: work.actor.to_owned(),
        at: work.now,
        until: work.now.plus(CONFIRMED_FOR),
    };
    work.hands.state.confirm(&confirmation).await?;
    work.audit("confirm", table, Some(id), "done", &json!({ "bound": confirmation.bound })).await
}

/// Writes down that a plan was made, and whether it was refused.
pub(super) async fn save(
    work: &Work<'_>,
    job: Job,
    (table, uuid): (&TableName, Uuid),
    shown: Shown<'_>,
    refusal: Option<&Refusal>,
) -> Result<(), Error> {
    let plan: serde_json::Value = serde_json::from_str(shown.header)?;
    let record = PlanRecord {
        id: shown.id,
        run: work.run.clone(),
        table: table.clone(),
        uuid,
        job: job.as_str().to_owned(),
        created_at: work.now,
        refused_by: refusal.map(ToString::to_string),
        header: json!({ "plan": plan, "bound": shown.bound, "refusal": refusal }).to_string(),
        location: Some(shown.location),
    };
    Ok(work.hands.state.save_plan(&record).await?)
}

/// Whether this rule refused the plan.
pub(super) fn was_refused_by(plan: &PlanRecord, rule: &str) -> bool {
    let header: Option<serde_json::Value> = serde_json::from_str(&plan.header).ok();
    header.is_some_and(|header| header["refusal"]["rule"] == rule)
}

/// Tells that the guard refused a plan, and how to go on if that can be confirmed.
pub(super) async fn refused(
    work: &Work<'_>,
    job: Job,
    table: &TableName,
    refusal: &Refusal,
    id: PlanId,
    report: &mut TableReport,
) -> Result<(), Error> {
    report.ended(Outcome::Refused, refusal.to_string());
    if refusal.can_be_confirmed() {
        let (job, table) = (job.as_str(), table.full());
        report.advice = Some(format!("icewarden run {job} --table {table} --apply --confirm {id}"));
    }
    work.audit("refuse", table, Some(id), "refused", &json!({ "rule": refusal })).await
}
