//! A table as its metadata file tells it, as far as maintenance needs to know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Age, RefName, SnapshotId, Timestamp};

/// The lenient view of a metadata file, formats 1 to 3 (spec, "Table Metadata").
///
/// Schemas, partition values and sort orders are left out: retention and reachability need none of them.
#[derive(Debug, Clone, PartialEq)]
pub struct TableState {
    /// 1, 2 or 3.
    pub format_version: u8,
    /// `None` in old format 1 tables; such a table cannot be told from its twins.
    pub uuid: Option<Uuid>,
    /// The table's base location, as stored.
    pub location: String,
    /// When the metadata was last changed, by its writer's clock.
    pub last_updated: Timestamp,
    /// 0 in format 1.
    pub last_sequence_number: i64,
    /// Table properties.
    pub properties: BTreeMap<String, String>,
    /// The snapshot of `main`, if there is one.
    pub current_snapshot: Option<SnapshotId>,
    /// In the metadata's order, which is not sorted by time.
    pub snapshots: Vec<Snapshot>,
    /// All refs. `main` is added for metadata that has a current snapshot and no `refs`.
    pub refs: BTreeMap<RefName, Ref>,
    /// Table statistics files; one snapshot may have several.
    pub statistics: Vec<StatisticsFile>,
    /// Partition statistics files.
    pub partition_statistics: Vec<StatisticsFile>,
    /// What `main` pointed at, oldest first, as far back as no expiry cut it. Also what a rollback left behind.
    pub snapshot_log: Vec<SnapshotId>,
    /// Previous metadata files, oldest first.
    pub metadata_log: Vec<MetadataLogEntry>,
    /// The names of the partition fields of every spec.
    pub partition_fields: BTreeSet<String>,
    /// The table has encryption keys, or a snapshot names one.
    pub is_encrypted: bool,
}

/// A snapshot in the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The snapshot it was made from; it may have been expired.
    pub parent: Option<SnapshotId>,
    /// When it was committed, by its writer's clock.
    pub at: Timestamp,
    /// 0 in format 1.
    pub sequence_number: i64,
    /// Where its manifests are named.
    pub manifests: ManifestSource,
    /// The operation and what else the writer noted.
    pub summary: BTreeMap<String, String>,
}

/// Where a snapshot's manifests are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestSource {
    /// A manifest list, by location.
    List(String),
    /// Format 1's list in the metadata itself, by location of each manifest.
    Inline(Vec<String>),
}

/// Branch or tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefKind {
    /// Moves with commits, and keeps ancestors of its head.
    Branch,
    /// Names one snapshot, and keeps only that.
    Tag,
}

impl RefKind {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Branch => "branch",
            Self::Tag => "tag",
        }
    }

    /// The kind with this word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Branch, Self::Tag].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A branch or tag with its own retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Ref {
    /// The snapshot it points at.
    pub snapshot: SnapshotId,
    /// Branch or tag.
    pub kind: RefKind,
    /// What the ref itself says about its retention.
    pub retention: Retention,
}

/// A ref's own retention (spec, "Snapshot Retention Policy"); `None` leaves it to the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Retention {
    /// Branches only.
    pub min_snapshots_to_keep: Option<i64>,
    /// Branches only.
    pub max_snapshot_age_ms: Option<i64>,
    /// After this age of its head the ref is dropped.
    pub max_ref_age_ms: Option<i64>,
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.max_ref_age_ms.map(|ms| format!("max-ref-age {}", Age(ms).show())),
            self.min_snapshots_to_keep.map(|count| format!("keep {count}")),
            self.max_snapshot_age_ms.map(|ms| format!("snapshots {}", Age(ms).show())),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "no retention" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// A statistics or partition statistics file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatisticsFile {
    /// The snapshot it describes.
    pub snapshot: SnapshotId,
    /// Where it is.
    pub location: String,
}

/// A previous metadata file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataLogEntry {
    /// When that file was made current, by its writer's clock.
    pub at: Timestamp,
    /// Where it is; it may have been deleted.
    pub location: String,
}

impl TableState {
    /// The value of a table property.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// Whether the table allows maintenance: `gc.enabled` absent, or `true` in any case (safety rule 4).
    pub fn gc_enabled(&self) -> bool {
        self.property("gc.enabled").is_none_or(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The ids of all snapshots.
    pub fn snapshot_ids(&self) -> BTreeSet<SnapshotId> {
        self.snapshots.iter().map(|snapshot| snapshot.id).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table with nothing in it.
    pub(crate) fn empty_table() -> TableState {
        TableState {
            format_version: 2,
            uuid: Some(Uuid::nil()),
            location: "s3://wh/db/t".to_owned(),
            last_updated: Timestamp(0),
            last_sequence_number: 0,
            properties: BTreeMap::new(),
            current_snapshot: None,
            snapshots: Vec::new(),
            refs: BTreeMap::new(),
            statistics: Vec::new(),
            partition_statistics: Vec::new(),
            snapshot_log: Vec::new(),
            metadata_log: Vec::new(),
            partition_fields: BTreeSet::new(),
            is_encrypted: false,
        }
    }

    #[test]
    fn only_true_in_any_case_or_no_word_at_all_allows_maintenance() {
        for (value, allowed) in [
            (None, true),
            (Some("true"), true),
            (Some("TRUE"), true),
            (Some("false"), false),
            (Some("yes"), false),
            (Some(""), false),
            (Some("true "), false),
        ] {
            let mut table = empty_table();
            table.properties.extend(value.map(|v| ("gc.enabled".to_owned(), v.to_owned())));
            assert_eq!(table.gc_enabled(), allowed, "{value:?}");
        }
    }
}
