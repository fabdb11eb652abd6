//! The next metadata file of a table, made from the current one by the updates of a commit: what Java's
//! `TableMetadata.Builder` makes of them, on the file's own JSON, so that whatever we do not know stays as it is.
//!
//! Only for catalogs whose client writes the file (SQL); a REST server does this itself. Pure: no IO, no clock.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use iceberg::spec::{SnapshotReference, SnapshotRetention};
use iceberg::{TableRequirement, TableUpdate};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::Fields;
use super::{MetadataError, RawRef, parse};
use crate::model::{Ref, RefKind, RefName, Retention, SnapshotId, TableState, Timestamp};

/// `write.metadata.previous-versions-max` where the table does not say, as in Java.
const PREVIOUS_VERSIONS_MAX: usize = 100;

/// What [`apply`] made.
#[derive(Debug, Clone, PartialEq)]
pub struct Edited {
    /// The new metadata file, as JSON.
    pub metadata: Vec<u8>,
    /// What it says.
    pub state: TableState,
}

/// Why there is no next metadata file.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The updates leave everything as it is; nothing must be committed (safety rule 13).
    #[error("the updates change nothing")]
    NothingToChange,
    /// The base cannot be read, or what came out cannot.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A part of the metadata is not as it should be, or could not be written.
    #[error("cannot edit table metadata: {0}")]
    Json(#[from] serde_json::Error),
    /// An update that this catalog is never sent.
    #[error("update {action} is not supported for this catalog")]
    Unsupported {
        /// Its name in the REST specification.
        action: String,
    },
    /// The updates would leave metadata that no reader takes, as in Java.
    #[error("{0}")]
    Invalid(String),
}

/// A requirement that does not let a commit through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// The table is not what the commit was made for.
    #[error("{0}")]
    NotMet(String),
    /// We cannot check it, so we do not say it holds.
    #[error("requirement {0} is not supported for this catalog")]
    Unsupported(String),
}

/// Whether the table is what a commit was made for.
pub fn check(state: &TableState, requirements: &[TableRequirement]) -> Result<(), RequirementError> {
    for requirement in requirements {
        match requirement {
            TableRequirement::UuidMatch { uuid } => {
                if state.uuid != Some(*uuid) {
                    let found = state.uuid.map_or_else(|| "none".to_owned(), |found| found.to_string());
                    return Err(RequirementError::NotMet(format!("the table's uuid is {found}, expected {uuid}")));
                }
            }
            TableRequirement::RefSnapshotIdMatch { r#ref, snapshot_id } => {
                let found = state.refs.get(&RefName::from(r#ref.as_str())).map(|found| found.snapshot.0);
                if found != *snapshot_id {
                    let show =
                        |id: Option<i64>| id.map_or_else(|| "absent".to_owned(), |id| format!("at snapshot {id}"));
                    let (found, expected) = (show(found), show(*snapshot_id));
                    return Err(RequirementError::NotMet(format!("ref {ref} is {found}, expected {expected}")));
                }
            }
            other => return Err(RequirementError::Unsupported(tag_of(other, "type"))),
        }
    }
    Ok(())
}

/// The metadata that follows `metadata` (inflated JSON, the file at `base_location`) when `updates` are made at `now`.
pub fn apply(
    metadata: &[u8],
    base_location: &str,
    updates: &[TableUpdate],
    now: Timestamp,
) -> Result<Edited, EditError> {
    let state = parse(metadata, base_location)?;
    let mut draft = Draft::new(metadata, &state, now)?;
    for update in updates {
        draft.update(update)?;
    }
    let metadata = draft.finish(&state, base_location)?;
    // Nothing is ever written that we could not read back.
    let state = parse(&metadata, "the new metadata")?;
    Ok(Edited { metadata, state })
}

/// The metadata while it is edited: its fields, and those parts that updates reach into.
struct Draft<'a> {
    fields: Fields<'a>,
    /// What becomes `last-updated-ms`.
    at: Timestamp,
    current: Option<i64>,
    /// Ids that are left.
    snapshots: HashSet<i64>,
    removed: HashSet<i64>,
    refs: Fields<'a>,
    properties: Fields<'a>,
    snapshot_log: Vec<Item<'a>>,
    statistics: Vec<Item<'a>>,
    partition_statistics: Vec<Item<'a>>,
    changed: bool,
}

/// An entry of a list that names a snapshot.
#[derive(Clone)]
struct Item<'a> {
    snapshot: i64,
    raw: Cow<'a, RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ItemKey {
    snapshot_id: i64,
    timestamp_ms: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct SnapshotLogEntry {
    timestamp_ms: i64,
    snapshot_id: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MetadataLogEntry<'a> {
    timestamp_ms: i64,
    metadata_file: Cow<'a, str>,
}

impl<'a> Draft<'a> {
    fn new(metadata: &'a [u8], state: &TableState, now: Timestamp) -> Result<Self, EditError> {
        let fields: Fields<'a> = serde_json::from_slice(metadata)?;
        let mut newest = now.max(state.last_updated);
        if let Some(logged) = state.metadata_log.iter().map(|entry| entry.at).max() {
            newest = newest.max(logged);
        }
        let mut snapshot_log = Vec::new();
        for raw in fields.read::<Vec<&'a RawValue>>("snapshot-log")? {
            let key: ItemKey = serde_json::from_str(raw.get())?;
            // Java refuses metadata whose times run backwards, and clocks of writers differ.
            newest = newest.max(Timestamp(key.timestamp_ms.unwrap_or(i64::MIN)));
            snapshot_log.push(Item { snapshot: key.snapshot_id, raw: Cow::Borrowed(raw) });
        }
        let current = state.current_snapshot.map(|id| id.0);
        let mut refs: Fields<'a> = fields.read("refs")?;
        if let (None, Some(current)) = (fields.get("refs"), current) {
            refs.set(RefName::MAIN, &BranchAt { snapshot_id: current, r#type: "branch" })?;
        }
        Ok(Self {
            at: newest,
            current,
            snapshots: state.snapshots.iter().map(|snapshot| snapshot.id.0).collect(),
            removed: HashSet::new(),
            refs,
            properties: fields.read("properties")?,
            snapshot_log,
            statistics: items(&fields, "statistics")?,
            partition_statistics: items(&fields, "partition-statistics")?,
            fields,
            changed: false,
        })
    }

    fn update(&mut self, update: &TableUpdate) -> Result<(), EditError> {
        match update {
            TableUpdate::RemoveSnapshots { snapshot_ids } => self.remove_snapshots(snapshot_ids)?,
            TableUpdate::RemoveSnapshotRef { ref_name } => self.remove_ref(ref_name),
            TableUpdate::SetSnapshotRef { ref_name, reference } => self.set_ref(ref_name, reference)?,
            TableUpdate::RemoveStatistics { snapshot_id } => {
                self.changed |= remove_items(&mut self.statistics, *snapshot_id);
            }
            TableUpdate::RemovePartitionStatistics { snapshot_id } => {
                self.changed |= remove_items(&mut self.partition_statistics, *snapshot_id);
            }
            TableUpdate::SetProperties { updates } => self.set_properties(updates)?,
            TableUpdate::RemoveProperties { removals } => {
                self.changed |= self.properties.remove(|name, _| removals.iter().any(|gone| gone == name)) > 0;
            }
            other => return Err(EditError::Unsupported { action: tag_of(other, "action") }),
        }
        Ok(())
    }

    /// Statistics of a snapshot go with it, and so does every ref that points at it.
    fn remove_snapshots(&mut self, ids: &[i64]) -> Result<(), EditError> {
        let mut gone = HashSet::new();
        for id in ids {
            if self.snapshots.remove(id) {
                gone.insert(*id);
                remove_items(&mut self.statistics, *id);
                remove_items(&mut self.partition_statistics, *id);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let mut unread = None;
        self.refs.remove(|name, raw| match serde_json::from_str::<ItemKey>(raw.get()) {
            Ok(key) if gone.contains(&key.snapshot_id) => {
                if name == RefName::MAIN {
                    self.current = None;
                }
                true
            }
            Ok(_) => false,
            Err(error) => {
                unread = Some(error);
                false
            }
        });
        if self.current.is_some_and(|current| gone.contains(&current)) {
            self.current = None;
        }
        self.removed.extend(gone);
        self.changed = true;
        unread.map_or(Ok(()), |error| Err(error.into()))
    }

    fn remove_ref(&mut self, name: &str) {
        let mut removed = self.refs.remove(|found, _| found == name) > 0;
        if name == RefName::MAIN {
            removed |= self.current.take().is_some();
        }
        self.changed |= removed;
    }

    fn set_ref(&mut self, name: &str, reference: &SnapshotReference) -> Result<(), EditError> {
        let wanted = as_ref(reference);
        let found = match self.refs.get(name) {
            Some(raw) => serde_json::from_str::<RawRef>(raw.get())?.into_ref().ok(),
            None => None,
        };
        if found.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let invalid = |reason: &str| Err(EditError::Invalid(format!("cannot set ref {name}: {reason}")));
        let id = reference.snapshot_id;
        if !self.snapshots.contains(&id) {
            return invalid(&format!("there is no snapshot {id}"));
        }
        let retention = wanted.retention;
        let settings = [retention.min_snapshots_to_keep, retention.max_snapshot_age_ms, retention.max_ref_age_ms];
        if settings.into_iter().flatten().any(|setting| setting <= 0) {
            return invalid("its retention must be greater than zero");
        }
        if name == RefName::MAIN {
            if wanted.kind != RefKind::Branch {
                return invalid("it must be a branch");
            }
            self.current = Some(id);
            let entry = SnapshotLogEntry { timestamp_ms: self.at.0, snapshot_id: id };
            let raw = Cow::Owned(serde_json::value::to_raw_value(&entry)?);
            self.snapshot_log.push(Item { snapshot: id, raw });
        }
        self.refs.set(name, reference)?;
        self.changed = true;
        Ok(())
    }

    fn set_properties(&mut self, updates: &HashMap<String, String>) -> Result<(), EditError> {
        // In the order of names: the same commit writes the same file.
        for (name, value) in updates.iter().collect::<BTreeMap<_, _>>() {
            let found = self.properties.get(name).map(|raw| serde_json::from_str::<String>(raw.get()));
            if !matches!(found, Some(Ok(found)) if found == *value) {
                self.properties.set(name, value)?;
                self.changed = true;
            }
        }
        Ok(())
    }

    fn finish(mut self, state: &TableState, base_location: &str) -> Result<Vec<u8>, EditError> {
        if !self.changed {
            return Err(EditError::NothingToChange);
        }
        self.cut_snapshot_log()?;
        let fields = &mut self.fields;
        if !self.removed.is_empty() {
            let mut left: Vec<Item<'a>> = items(fields, "snapshots")?;
            left.retain(|item| !self.removed.contains(&item.snapshot));
            put_items(fields, "snapshots", &left)?;
        }
        fields.set("last-updated-ms", &self.at.0)?;
        // Java writes -1 for "none" up to format 2.
        let none = (state.format_version < 3).then_some(-1);
        fields.set("current-snapshot-id", &self.current.or(none))?;
        fields.set("refs", &self.refs)?;
        fields.set("properties", &self.properties)?;
        put_items(fields, "snapshot-log", &self.snapshot_log)?;
        put_items(fields, "statistics", &self.statistics)?;
        put_items(fields, "partition-statistics", &self.partition_statistics)?;
        append_to_log(fields, &self.properties, state, base_location)?;
        Ok(serde_json::to_vec(&self.fields)?)
    }

    /// A hole in the history would let a removed snapshot's successor seem current in its time, so history starts
    /// after the newest removed snapshot that ever was current.
    fn cut_snapshot_log(&mut self) -> Result<(), EditError> {
        if self.removed.is_empty() {
            return Ok(());
        }
        let start = self.snapshot_log.iter().rposition(|entry| !self.snapshots.contains(&entry.snapshot));
        self.snapshot_log.drain(..start.map_or(0, |last| last + 1));
        match self.current {
            Some(current)
                if self.snapshots.contains(&current)
                    && self.snapshot_log.last().is_none_or(|entry| entry.snapshot != current) =>
            {
                Err(EditError::Invalid(format!(
                    "the snapshot log does not end at the current snapshot {current}; Iceberg refuses to remove snapshots \
                     from such a table until a new snapshot is committed to main"
                )))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct BranchAt {
    snapshot_id: i64,
    r#type: &'static str,
}

fn items<'a>(fields: &Fields<'a>, name: &str) -> Result<Vec<Item<'a>>, serde_json::Error> {
    let read = |raw: &'a RawValue| {
        let key: ItemKey = serde_json::from_str(raw.get())?;
        Ok(Item { snapshot: key.snapshot_id, raw: Cow::Borrowed(raw) })
    };
    fields.read::<Vec<&'a RawValue>>(name)?.into_iter().map(read).collect()
}

/// Writes a list; one that the file does not have stays away while it is empty.
fn put_items(fields: &mut Fields<'_>, name: &str, items: &[Item<'_>]) -> Result<(), serde_json::Error> {
    if items.is_empty() && !fields.has(name) {
        return Ok(());
    }
    fields.set(name, &items.iter().map(|item| &*item.raw).collect::<Vec<_>>())
}

fn remove_items(items: &mut Vec<Item<'_>>, snapshot: i64) -> bool {
    let before = items.len();
    items.retain(|item| item.snapshot != snapshot);
    items.len() < before
}

/// Adds the base to the metadata log and cuts the log to its length; what fell off.
fn append_to_log(
    fields: &mut Fields<'_>,
    properties: &Fields<'_>,
    state: &TableState,
    base_location: &str,
) -> Result<(), EditError> {
    let last = MetadataLogEntry { timestamp_ms: state.last_updated.0, metadata_file: Cow::Borrowed(base_location) };
    let last = serde_json::value::to_raw_value(&last)?;
    let mut log: Vec<&RawValue> = fields.read("metadata-log")?;
    log.push(&last);
    let longest = properties
        .get("write.metadata.previous-versions-max")
        .and_then(|raw| raw.get().trim_matches('"').trim().parse::<i64>().ok())
        .map_or(PREVIOUS_VERSIONS_MAX, |max| usize::try_from(max).unwrap_or(0).max(1));
    log.drain(..log.len().saturating_sub(longest));
    Ok(fields.set("metadata-log", &log)?)
}

fn as_ref(reference: &SnapshotReference) -> Ref {
    let (kind, retention) = match reference.retention {
        SnapshotRetention::Branch { min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms } => {
            let min_snapshots_to_keep = min_snapshots_to_keep.map(i64::from);
            (RefKind::Branch, Retention { min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms })
        }
        SnapshotRetention::Tag { max_ref_age_ms } => {
            (RefKind::Tag, Retention { max_ref_age_ms, ..Retention::default() })
        }
    };
    Ref { snapshot: SnapshotId(reference.snapshot_id), kind, retention }
}

/// The name of an update or requirement in the REST specification.
fn tag_of(tagged: &impl Serialize, tag: &str) -> String {
    let value = serde_json::to_value(tagged).unwrap_or_default();
    value.get(tag).and_then(|tag| tag.as_str()).unwrap_or("of an unknown kind").to_owned()
}

#[cfg(test)]
mod tests;
