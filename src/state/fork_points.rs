//! Fork points in the plans store, a small file a table: a lost database must not cost the base of an open branch.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Plans, PlansError, State, hex};
use crate::model::{RefName, SnapshotId, TableState, Timestamp};
use crate::state::KnownRefs;
use crate::storage::StorageErrorKind;

/// Where each branch of a table left `main`.
type ForkPoints = BTreeMap<RefName, SnapshotId>;

impl Plans {
    /// Records the refs of a table as they are seen now (see [`State::see_refs`]), with their fork points in both
    /// places. What the database does not know of a table, the file may.
    pub async fn see_refs(
        &self,
        state: &State,
        (catalog, uuid): (&str, Uuid),
        table: &TableState,
        now: Timestamp,
    ) -> Result<KnownRefs, PlansError> {
        let stored = match state.fork_points(catalog, uuid).await? {
            Some(stored) => stored,
            None => self.stored_fork_points(catalog, uuid).await?,
        };
        let known = state.see_refs(catalog, uuid, table, &stored, now).await?;
        let of_now: ForkPoints =
            known.refs.iter().filter_map(|(name, seen)| Some((name.clone(), seen.fork_point?))).collect();
        if of_now != stored {
            let bytes = serde_json::to_vec_pretty(&of_now)
                .map_err(|error| PlansError::Damaged { location: name(catalog, uuid), reason: error.to_string() })?;
            self.write(&name(catalog, uuid), bytes.into()).await?;
        }
        Ok(known)
    }

    async fn stored_fork_points(&self, catalog: &str, uuid: Uuid) -> Result<ForkPoints, PlansError> {
        let location = self.location(&name(catalog, uuid))?;
        match self.read(&location).await {
            // A damaged one tells nothing: the fork points of today count.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(PlansError::Storage { source, .. }) if source.kind == StorageErrorKind::NotFound => {
                Ok(ForkPoints::new())
            }
            Err(error) => Err(error),
        }
    }
}

fn name(catalog: &str, uuid: Uuid) -> String {
    format!("fork-points/{uuid}-{}.json", hex(&Sha256::digest(catalog)[..4]))
}
