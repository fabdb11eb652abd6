//! The table metadata file: read, inflated, and understood as far as maintenance needs it.
//!
//! The parse is lenient where Java is strict and it does not matter (types of columns, transforms, fields that we
//! do not know, dangling refs), because a table that cannot be loaded gets no maintenance. It is strict where a
//! guess could lose data: an unknown format version, a snapshot without manifests, two snapshots with one id, a
//! ref of an unknown type. Nothing here decides anything; [`edit`] is the only writer.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;
use uuid::Uuid;

use crate::model::{
    ManifestSource, MetadataLogEntry, Ref, RefKind, RefName, Retention, Snapshot, SnapshotId, StatisticsFile,
    TableState, Timestamp,
};
use crate::storage::{Storage, StorageError};

pub mod edit;
mod fields;

/// The most that a gzip metadata file may inflate to: far above any real one, far below what a bomb asks for.
pub const MAX_INFLATED: u64 = 2 << 30;

/// How a gzip file starts, whatever its name says.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A metadata file cannot be read, or is not one. Each variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The store does not give it.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// It is no JSON, or broken off, or its compression is.
    #[error("{location}: not a metadata file: {reason}")]
    NotJson {
        /// Which file.
        location: String,
        /// The parser's words.
        reason: String,
    },
    /// Its format version is not one that we know.
    #[error("{location}: format version {version} is not supported (1, 2 and 3 are); the table is left alone")]
    Unsupported {
        /// Which file.
        location: String,
        /// The version it names.
        version: String,
    },
    /// It is JSON, but lacks what every table has, or contradicts itself.
    #[error("{location}: invalid table metadata: {reason}")]
    Invalid {
        /// Which file.
        location: String,
        /// What is wrong.
        reason: String,
    },
}

impl MetadataError {
    /// The file that it is about.
    pub fn location(&self) -> &str {
        match self {
            Self::Storage(error) => &error.location,
            Self::NotJson { location, .. } | Self::Unsupported { location, .. } | Self::Invalid { location, .. } => {
                location
            }
        }
    }
}

/// Reads the metadata file at `location`. The bytes are its JSON: a file that is gzip by its content, whatever
/// its name, is inflated.
pub async fn read(storage: &Storage, location: &str) -> Result<(Bytes, TableState), MetadataError> {
    let stored = storage.read(location).await?;
    let name = location.to_owned();
    // Megabytes of JSON take long enough to hold up the other tasks of this thread.
    let parsed = tokio::task::spawn_blocking(move || {
        let json = inflate(stored, &name, MAX_INFLATED)?;
        let state = parse(&json, &name)?;
        Ok((json, state))
    });
    parsed.await.unwrap_or_else(|error| {
        Err(MetadataError::Invalid { location: location.to_owned(), reason: format!("reading was cut short: {error}") })
    })
}

/// The JSON of the metadata file at `location`, whatever it says.
pub async fn read_json(storage: &Storage, location: &str) -> Result<Bytes, MetadataError> {
    inflate(storage.read(location).await?, location, MAX_INFLATED)
}

/// What a metadata file (inflated JSON) says of its table. `location` is for the error only.
pub fn parse(metadata: &[u8], location: &str) -> Result<TableState, MetadataError> {
    let invalid = |reason: String| MetadataError::Invalid { location: location.to_owned(), reason };
    let unsupported = |version: String| MetadataError::Unsupported { location: location.to_owned(), version };
    let raw: RawMetadata = match serde_json::from_slice(metadata) {
        Ok(raw) => raw,
        Err(error) => {
            // A version that we do not know may have other shapes; then the version is the reason, not the shape.
            if let Ok(RawVersion { format_version: Some(version) }) = serde_json::from_slice(metadata)
                && known_version(&version).is_none()
            {
                return Err(unsupported(version.to_string()));
            }
            return Err(json_error(&error, location));
        }
    };
    let version = raw.format_version.as_ref().ok_or_else(|| invalid("it has no format-version".to_owned()))?;
    let format_version = known_version(version).ok_or_else(|| unsupported(version.to_string()))?;
    raw.into_state(format_version).map_err(invalid)
}

/// Calls `f` with every string in the JSON, keys and values, without building a tree of it.
pub fn each_string(metadata: &[u8], mut f: impl FnMut(&str)) -> Result<(), MetadataError> {
    let mut deserializer = serde_json::Deserializer::from_slice(metadata);
    EachString(&mut f)
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| json_error(&error, "metadata"))
}

/// The JSON of a stored metadata file.
fn inflate(stored: Bytes, location: &str, limit: u64) -> Result<Bytes, MetadataError> {
    if !stored.starts_with(&GZIP_MAGIC) {
        return Ok(stored);
    }
    let broken = |reason: String| MetadataError::NotJson { location: location.to_owned(), reason };
    let mut json = Vec::new();
    MultiGzDecoder::new(&stored[..])
        .take(limit.saturating_add(1))
        .read_to_end(&mut json)
        .map_err(|error| broken(format!("cannot inflate it: {error}")))?;
    if json.len() as u64 > limit {
        return Err(broken(format!("it inflates to more than {limit} bytes")));
    }
    Ok(json.into())
}

fn json_error(error: &serde_json::Error, location: &str) -> MetadataError {
    let (location, reason) = (location.to_owned(), error.to_string());
    match error.classify() {
        Category::Data => MetadataError::Invalid { location, reason },
        Category::Io | Category::Syntax | Category::Eof => MetadataError::NotJson { location, reason },
    }
}

fn known_version(version: &Value) -> Option<u8> {
    version.as_u64().and_then(|number| u8::try_from(number).ok()).filter(|number| (1..=3).contains(number))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawVersion {
    format_version: Option<Value>,
}

/// The fields that [`TableState`] is made of. Whatever else the file has is skipped unread.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawMetadata {
    format_version: Option<Value>,
    table_uuid: Option<String>,
    location: Option<String>,
    last_updated_ms: Option<i64>,
    last_sequence_number: Option<i64>,
    properties: Option<BTreeMap<String, Value>>,
    current_snapshot_id: Option<i64>,
    snapshots: Option<Vec<RawSnapshot>>,
    refs: Option<BTreeMap<String, RawRef>>,
    statistics: Option<Vec<RawStatistics>>,
    partition_statistics: Option<Vec<RawStatistics>>,
    snapshot_log: Option<Vec<RawSnapshotLogEntry>>,
    metadata_log: Option<Vec<RawLogEntry>>,
    partition_specs: Option<Vec<RawSpec>>,
    /// Format 1: the fields of the one spec.
    partition_spec: Option<Vec<RawPartitionField>>,
    encryption_keys: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawSnapshot {
    snapshot_id: i64,
    parent_snapshot_id: Option<i64>,
    timestamp_ms: i64,
    sequence_number: Option<i64>,
    manifest_list: Option<String>,
    manifests: Option<Vec<String>>,
    summary: Option<BTreeMap<String, Value>>,
    key_id: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawRef {
    snapshot_id: i64,
    r#type: String,
    min_snapshots_to_keep: Option<i64>,
    max_snapshot_age_ms: Option<i64>,
    max_ref_age_ms: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawStatistics {
    snapshot_id: i64,
    statistics_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawSnapshotLogEntry {
    snapshot_id: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawLogEntry {
    timestamp_ms: i64,
    metadata_file: String,
}

#[derive(Deserialize)]
struct RawSpec {
    fields: Option<Vec<RawPartitionField>>,
}

#[derive(Deserialize)]
struct RawPartitionField {
    name: Option<String>,
}

impl RawMetadata {
    fn into_state(self, format_version: u8) -> Result<TableState, String> {
        let location = self.location.filter(|location| !location.is_empty()).ok_or("it has no location")?;
        let last_updated = self.last_updated_ms.ok_or("it has no last-updated-ms")?;
        let uuid = match &self.table_uuid {
            Some(text) => Some(Uuid::parse_str(text).map_err(|_| format!("table-uuid {text:?} is no uuid"))?),
            None => None,
        };
        let properties = strings(self.properties);
        // Format 1 writes -1 where there is no snapshot.
        let current_snapshot = self.current_snapshot_id.filter(|id| *id != -1).map(SnapshotId);

        let raw_snapshots = self.snapshots.unwrap_or_default();
        let is_encrypted = self.encryption_keys.is_some_and(|keys| !keys.is_empty())
            || raw_snapshots.iter().any(|snapshot| snapshot.key_id.is_some())
            || properties.contains_key("encryption.key-id");
        let mut met = HashSet::with_capacity(raw_snapshots.len());
        let mut snapshots = Vec::with_capacity(raw_snapshots.len());
        for raw in raw_snapshots {
            if !met.insert(raw.snapshot_id) {
                return Err(format!("two snapshots have the id {}", raw.snapshot_id));
            }
            snapshots.push(raw.into_snapshot()?);
        }

        let mut refs = BTreeMap::new();
        for (name, raw) in self.refs.unwrap_or_default() {
            let read = raw.into_ref().map_err(|reason| format!("ref {name:?} {reason}"))?;
            refs.insert(RefName::new(name), read);
        }
        check_main(&mut refs, current_snapshot)?;

        let specs = self.partition_specs.unwrap_or_default().into_iter().filter_map(|spec| spec.fields);
        let partition_fields: BTreeSet<String> =
            specs.chain(self.partition_spec).flatten().filter_map(|field| field.name).collect();

        Ok(TableState {
            format_version,
            uuid,
            location,
            last_updated: Timestamp(last_updated),
            last_sequence_number: self.last_sequence_number.unwrap_or(0),
            properties,
            current_snapshot,
            snapshots,
            refs,
            statistics: statistics(self.statistics),
            partition_statistics: statistics(self.partition_statistics),
            snapshot_log: self
                .snapshot_log
                .unwrap_or_default()
                .into_iter()
                .map(|raw| SnapshotId(raw.snapshot_id))
                .collect(),
            metadata_log: self
                .metadata_log
                .unwrap_or_default()
                .into_iter()
                .map(|raw| MetadataLogEntry { at: Timestamp(raw.timestamp_ms), location: raw.metadata_file })
                .collect(),
            partition_fields,
            is_encrypted,
        })
    }
}

/// `main` and the current snapshot are one thing told twice. Metadata from before refs has only the latter; where
/// both are there and differ, nothing tells which is right.
fn check_main(refs: &mut BTreeMap<RefName, Ref>, current: Option<SnapshotId>) -> Result<(), String> {
    let main = RefName::new(RefName::MAIN);
    match (refs.get(&main).map(|main| main.snapshot), current) {
        (Some(main), None) => Err(format!("main is at snapshot {main}, but there is no current snapshot")),
        (Some(main), Some(current)) if main != current => {
            Err(format!("main is at snapshot {main}, but the current snapshot is {current}"))
        }
        (None, Some(current)) => {
            let head = Ref { snapshot: current, kind: RefKind::Branch, retention: Retention::default() };
            refs.insert(main, head);
            Ok(())
        }
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

impl RawSnapshot {
    fn into_snapshot(self) -> Result<Snapshot, String> {
        let manifests = match (self.manifest_list, self.manifests) {
            (Some(list), _) => ManifestSource::List(list),
            (None, Some(inline)) => ManifestSource::Inline(inline),
            (None, None) => return Err(format!("snapshot {} has no manifest list", self.snapshot_id)),
        };
        Ok(Snapshot {
            id: SnapshotId(self.snapshot_id),
            parent: self.parent_snapshot_id.filter(|id| *id != -1).map(SnapshotId),
            at: Timestamp(self.timestamp_ms),
            sequence_number: self.sequence_number.unwrap_or(0),
            manifests,
            summary: strings(self.summary),
        })
    }
}

impl RawRef {
    fn into_ref(self) -> Result<Ref, String> {
        let kind = match self.r#type.to_ascii_lowercase().as_str() {
            "branch" => RefKind::Branch,
            "tag" => RefKind::Tag,
            _ => return Err(format!("is a {:?}, neither branch nor tag", self.r#type)),
        };
        Ok(Ref {
            snapshot: SnapshotId(self.snapshot_id),
            kind,
            retention: Retention {
                min_snapshots_to_keep: self.min_snapshots_to_keep,
                max_snapshot_age_ms: self.max_snapshot_age_ms,
                max_ref_age_ms: self.max_ref_age_ms,
            },
        })
    }
}

fn statistics(raw: Option<Vec<RawStatistics>>) -> Vec<StatisticsFile> {
    let file =
        |raw: RawStatistics| StatisticsFile { snapshot: SnapshotId(raw.snapshot_id), location: raw.statistics_path };
    raw.unwrap_or_default().into_iter().map(file).collect()
}

/// Values are strings by the specification; whatever else a writer put there is taken as its JSON, `null` too, so
/// that `"gc.enabled": null` is not mistaken for an absent property.
fn strings(raw: Option<BTreeMap<String, Value>>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    raw.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value))).collect()
}

/// Walks any JSON and hands out its strings.
struct EachString<'f, F>(&'f mut F);

impl<'de, F: FnMut(&str)> DeserializeSeed<'de> for EachString<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&str)> Visitor<'de> for EachString<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        (self.0)(text);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(EachString(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while entries.next_key_seed(EachString(&mut *self.0))?.is_some() {
            entries.next_value_seed(EachString(&mut *self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
