//! Whether a table may be worked on, and in which folders (safety rules 4 and 6).

use futures::FutureExt;
use serde_json::json;

use uuid::Uuid;

use crate::apply::Hands;
use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::inventory::world::World;
use crate::model::{Root, Timestamp};
use crate::plan::roots::{Place, Shared};
use crate::report::{Outcome, TableReport};
use crate::state::{FindingKind, Observation, Severity};
use crate::storage::StorageErrorKind;
use crate::sweep::{self, Obstacle};

/// The table's folders, or a skip, with its finding where they are not its alone (safety rules 4 and 6).
pub(super) async fn place_or_skip(
    hands: &Hands,
    loaded: &LoadedTable,
    world: &World,
    now: Timestamp,
    report: &mut TableReport,
) -> Result<Option<Place>, Error> {
    let (name, uuid) = (&loaded.name, loaded.state.uuid);
    let obstacle = match sweep::eligible(&hands.config, hands.storage.rules(), loaded, world)? {
        Ok(place) => {
            if let Some(file) = foreign_metadata(hands, loaded, &place, now).boxed().await? {
                report.ended(Outcome::Skipped, file);
                return Ok(None);
            }
            hands.state.resolve_kind(FindingKind::SharedLocation, name, uuid, now).await?;
            return Ok(Some(place));
        }
        Err(Obstacle::Encrypted) => return Err(sweep::encrypted(loaded).into()),
        Err(obstacle) => obstacle,
    };
    match (&obstacle, uuid) {
        (Obstacle::Shared(shared), Some(_)) => skip_shared(hands, loaded, shared, json!({}), now, report).await?,
        _ => report.ended(Outcome::Skipped, obstacle.to_string()),
    }
    Ok(None)
}

/// Skips a table whose folders are not its alone, with a finding.
pub(super) async fn skip_shared(
    hands: &Hands,
    loaded: &LoadedTable,
    shared: &Shared,
    numbers: serde_json::Value,
    now: Timestamp,
    report: &mut TableReport,
) -> Result<(), Error> {
    let (name, uuid) = (&loaded.name, loaded.state.uuid);
    let seen = Observation {
        kind: FindingKind::SharedLocation,
        table: name.clone(),
        uuid,
        ref_name: None,
        severity: Severity::Warning,
        numbers,
        message: format!("{name} is skipped: {shared}"),
        advice: "give one of them its own location, or name the other in a policy's `exclusive`".to_owned(),
    };
    // Boxed, here and below: otherwise the compiler cannot see that a run may be spawned.
    hands.state.raise(&seen, now).boxed().await?;
    report.ended(Outcome::Skipped, shared.to_string());
    Ok(())
}

/// What an orphan run found in the table's folders makes them shared for every job, until it is gone or an override
/// names it: nothing but a listing tells of it.
async fn foreign_metadata(
    hands: &Hands,
    loaded: &LoadedTable,
    place: &Place,
    now: Timestamp,
) -> Result<Option<String>, Error> {
    let Some(uuid) = loaded.state.uuid else { return Ok(None) };
    let findings = hands.state.open_findings_of(uuid).await?;
    let shared = findings.into_iter().find(|finding| finding.seen.kind == FindingKind::SharedLocation);
    let Some(shared) = shared else { return Ok(None) };
    let (file, of) = (shared.seen.numbers["file"].as_str(), shared.seen.numbers["of"].as_str());
    let (Some(file), Some(of)) = (file, of.and_then(|of| of.parse::<Uuid>().ok())) else { return Ok(None) };
    // In the folder of a table that a catalog tells of by now, it is that one's.
    let is_theirs = hands.storage.rules().parse(file).is_ok_and(|file| Root::any_contains(&place.others, &file));
    if is_theirs || sweep::exclusive(&hands.config, &loaded.name).contains(&of) {
        return Ok(None);
    }
    if let Err(error) = loaded.storage.head(file).await
        && error.kind == StorageErrorKind::NotFound
    {
        return Ok(None);
    }
    hands.state.raise(&shared.seen, now).await?;
    Ok(Some(Shared::ForeignMetadata { file: file.to_owned(), uuid: of }.to_string()))
}
