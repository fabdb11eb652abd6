//! Builds one table's history, commit by commit: each writes the files and the metadata file that a real
//! writer would have left at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::{FormatVersion, PartitionSpec, SortOrder, Transform, UnboundPartitionSpec};
use roaring::RoaringTreemap;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::model::{RefName, Retention, Timestamp};

use super::DemoError;
use super::change::{Change, FileKey, key};
use super::content::{self, ContentFile, Rows};
use super::folder::TableFolder;
use super::manifests::{Commit, Entry, Manifest, Shape, Status, is_deletes};

/// Ids and uuids: the same for the same seed, other ones in another lake.
#[derive(Debug)]
struct Ids {
    seed: u64,
    given: u64,
}

impl Ids {
    fn snapshot(&mut self) -> i64 {
        self.given += 1;
        // Java's ids are positive too.
        (xxh3_64_with_seed(&self.given.to_be_bytes(), self.seed) >> 1).cast_signed()
    }

    fn uuid(&mut self) -> Uuid {
        self.given += 1;
        let bytes = xxh3_128_with_seed(&self.given.to_be_bytes(), self.seed).to_be_bytes();
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }
}

/// How a table is made.
#[derive(Debug)]
pub(super) struct Design<'a> {
    pub(super) format: FormatVersion,
    /// Whether it is partitioned by the day of `at`.
    pub(super) by_day: bool,
    pub(super) properties: &'a [(&'a str, &'a str)],
    pub(super) created: Timestamp,
    pub(super) seed: u64,
}

/// Where a snapshot goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Onto<'a> {
    /// Becomes the head of this branch, which exists (`main` from the first commit on).
    Branch(&'a str),
    /// Becomes the head of nothing; `main`'s head is its parent.
    Staged {
        /// Its write-audit-publish id.
        wap_id: &'a str,
    },
}

/// A table in the making.
#[derive(Debug)]
pub(super) struct Table {
    folder: TableFolder,
    shape: Shape,
    by_day: bool,
    ids: Ids,
    /// A JSON object.
    metadata: Value,
    /// Empty until the first is written.
    metadata_location: String,
    version: u32,
    updated: Timestamp,
    snapshots: BTreeMap<i64, Vec<Manifest>>,
    heads: BTreeMap<String, i64>,
    /// Position deletes of each data file so far, on whatever branch.
    deleted: BTreeMap<String, RoaringTreemap>,
    sequence: i64,
    next_row_id: u64,
    next_id: i64,
}

impl Table {
    /// Creates the table, without a snapshot.
    pub(super) fn create(folder: TableFolder, design: &Design<'_>) -> Result<Self, DemoError> {
        let failed = |error: &dyn std::error::Error| DemoError::write(folder.location(), error);
        let schema = Arc::new(content::schema().map_err(|error| failed(&error))?);
        let mut spec = UnboundPartitionSpec::builder().with_spec_id(0);
        if design.by_day {
            spec = spec.add_partition_field(2, "at_day", Transform::Day).map_err(|error| failed(&error))?;
        }
        let spec: PartitionSpec = spec.build().bind(Arc::clone(&schema)).map_err(|error| failed(&error))?;
        let mut ids = Ids { seed: design.seed, given: 0 };
        let value = |result: serde_json::Result<Value>| result.map_err(|error| failed(&error));
        let schema_json = value(serde_json::to_value(&*schema))?;
        let spec_json = value(serde_json::to_value(&spec))?;
        let properties: Map<String, Value> =
            design.properties.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();

        let mut metadata = json!({});
        let mut set = |key: &str, value: Value| metadata[key] = value;
        set("format-version", json!(design.format as u8));
        set("table-uuid", json!(ids.uuid()));
        set("location", json!(folder.location()));
        if design.format == FormatVersion::V1 {
            set("schema", schema_json.clone());
            set("partition-spec", spec_json["fields"].clone());
        } else {
            set("last-sequence-number", json!(0));
        }
        set("last-updated-ms", json!(design.created));
        set("last-column-id", json!(schema.highest_field_id()));
        set("current-schema-id", json!(0));
        set("schemas", json!([schema_json]));
        set("default-spec-id", json!(0));
        set("partition-specs", json!([spec_json]));
        set("last-partition-id", json!(if design.by_day { 1000 } else { 999 }));
        set("default-sort-order-id", json!(0));
        set("sort-orders", json!([value(serde_json::to_value(SortOrder::unsorted_order()))?]));
        set("properties", Value::Object(properties));
        if design.format == FormatVersion::V3 {
            set("next-row-id", json!(0));
        }
        for list in ["snapshots", "statistics", "snapshot-log", "metadata-log"] {
            set(list, json!([]));
        }
        set("refs", json!({}));

        let shape = Shape { format: design.format, schema, spec };
        let mut table = Self {
            folder,
            shape,
            by_day: design.by_day,
            ids,
            metadata,
            metadata_location: String::new(),
            version: 0,
            updated: design.created,
            snapshots: BTreeMap::new(),
            heads: BTreeMap::new(),
            deleted: BTreeMap::new(),
            sequence: 0,
            next_row_id: 0,
            next_id: 1,
        };
        table.write_metadata(design.created)?;
        Ok(table)
    }

    /// The current metadata file.
    pub(super) fn metadata_location(&self) -> &str {
        &self.metadata_location
    }

    /// The table's folder.
    pub(super) fn folder(&self) -> &TableFolder {
        &self.folder
    }

    /// The data files of a branch's head, oldest first.
    pub(super) fn data_files(&self, branch: &str) -> Vec<ContentFile> {
        let mut files: Vec<_> = self.live(branch).filter(|file| file.is_data()).cloned().collect();
        files.sort_by_key(|file| file.rows().map(|rows| rows.first_id));
        files
    }

    fn live(&self, branch: &str) -> impl Iterator<Item = &ContentFile> + Clone {
        let manifests = self.heads.get(branch).and_then(|head| self.snapshots.get(head));
        manifests.into_iter().flatten().flat_map(Manifest::live).map(|entry| &entry.file)
    }

    /// The delete files and vectors of these data files.
    fn deletes_of<'a>(&self, branch: &str, data: impl Iterator<Item = &'a ContentFile>) -> BTreeSet<FileKey> {
        let targets: BTreeSet<&str> = data.map(|file| file.location.as_str()).collect();
        let is_hit = |file: &&ContentFile| file.target().is_some_and(|target| targets.contains(target));
        self.live(branch).filter(is_hit).map(key).collect()
    }

    /// What a commit that removes data files removes: their deletes would apply to nothing.
    fn with_deletes<'a>(&self, branch: &str, data: impl Iterator<Item = &'a ContentFile> + Clone) -> BTreeSet<FileKey> {
        let mut removed = self.deletes_of(branch, data.clone());
        removed.extend(data.map(key));
        removed
    }

    /// Adds `count` new rows in `files` (1 or 2) data files; returns the snapshot.
    pub(super) async fn load(
        &mut self,
        onto: Onto<'_>,
        at: Timestamp,
        files: usize,
        count: i64,
    ) -> Result<i64, DemoError> {
        let rows = Rows::until(at, self.next_id, count);
        self.next_id += count;
        let parts = if files > 1 { rows.halves().to_vec() } else { vec![rows] };
        let added = self.write_rows(&parts, at)?;
        self.commit(onto, at, Change::of("append", added)).await
    }

    /// Replaces the data files `old` of one partition by one with the same rows: of a higher revision in an
    /// `overwrite`, with the same values in a `replace`.
    pub(super) async fn rewrite(
        &mut self,
        branch: &str,
        at: Timestamp,
        operation: &'static str,
        old: &[Vec<ContentFile>],
    ) -> Result<i64, DemoError> {
        let revised = u8::from(operation == "overwrite");
        let mut parts = Vec::new();
        for group in old {
            let rows = group.iter().filter_map(ContentFile::rows).reduce(Rows::and);
            parts.extend(rows.map(|rows| Rows { revision: rows.revision + revised, ..rows }));
        }
        let added = self.write_rows(&parts, at)?;
        let mut change = Change::of(operation, added);
        change.removed = self.with_deletes(branch, old.iter().flatten());
        self.commit(Onto::Branch(branch), at, change).await
    }

    /// Removes whole data files.
    pub(super) async fn delete_files(
        &mut self,
        branch: &str,
        at: Timestamp,
        old: &[ContentFile],
    ) -> Result<i64, DemoError> {
        let mut change = Change::of("delete", Vec::new());
        change.removed = self.with_deletes(branch, old.iter());
        self.commit(Onto::Branch(branch), at, change).await
    }

    /// Deletes rows of `main` by position, merge on read: position delete files in format 2, in format 3 one
    /// Puffin file of vectors that replace the earlier ones of the same data files.
    pub(super) async fn delete_rows(
        &mut self,
        at: Timestamp,
        rows: &[(&ContentFile, &[u32])],
    ) -> Result<i64, DemoError> {
        let mut change = Change::of("overwrite", Vec::new());
        if self.shape.format == FormatVersion::V3 {
            let mut vectors = Vec::new();
            for (target, positions) in rows {
                let deleted = self.deleted.entry(target.location.clone()).or_default();
                deleted.extend(positions.iter().copied().map(u64::from));
                vectors.push((*target, deleted.clone()));
            }
            let relative = format!("data/{}-deletes.puffin", self.ids.uuid());
            change.added = content::write_vectors(&self.folder, &relative, &vectors, at).await?;
            let targets = rows.iter().map(|(target, _)| *target);
            change.removed = self.deletes_of(RefName::MAIN, targets);
        } else {
            for (target, positions) in rows {
                let relative = self.relative(target.day, "deletes.parquet");
                change.added.push(content::write_position_deletes(&self.folder, &relative, target, positions, at)?);
            }
        }
        self.commit(Onto::Branch(RefName::MAIN), at, change).await
    }

    /// Publishes a staged snapshot: `main` gets a new snapshot with the same data files.
    pub(super) async fn publish(&mut self, staged: i64, wap_id: &str, at: Timestamp) -> Result<i64, DemoError> {
        let manifests = self.snapshots.get(&staged).into_iter().flatten();
        let entries = manifests.flat_map(|manifest| &manifest.entries);
        let added = entries.filter(|entry| entry.snapshot == staged && entry.status == Status::Added);
        let mut change = Change::of("append", added.map(|entry| entry.file.clone()).collect());
        change.notes = vec![("source-snapshot-id", staged.to_string()), ("published-wap-id", wap_id.to_owned())];
        self.commit(Onto::Branch(RefName::MAIN), at, change).await
    }

    /// Creates a branch at the head of `main`.
    pub(super) fn branch(&mut self, name: &str, at: Timestamp, retention: Retention) -> Result<(), DemoError> {
        self.create_ref(name, "branch", at, retention)
    }

    /// Creates a tag at the head of `main`.
    pub(super) fn tag(&mut self, name: &str, at: Timestamp, retention: Retention) -> Result<(), DemoError> {
        self.create_ref(name, "tag", at, retention)
    }

    fn create_ref(&mut self, name: &str, kind: &str, at: Timestamp, retention: Retention) -> Result<(), DemoError> {
        let Some(&head) = self.heads.get(RefName::MAIN) else { return Ok(()) };
        if kind == "branch" {
            self.heads.insert(name.to_owned(), head);
        }
        let mut entry = json!({ "snapshot-id": head, "type": kind });
        for (key, value) in [
            ("min-snapshots-to-keep", retention.min_snapshots_to_keep),
            ("max-snapshot-age-ms", retention.max_snapshot_age_ms),
            ("max-ref-age-ms", retention.max_ref_age_ms),
        ] {
            if let Some(value) = value {
                entry[key] = json!(value);
            }
        }
        self.metadata["refs"][name] = entry;
        self.write_metadata(at)
    }

    fn write_rows(&mut self, parts: &[Rows], at: Timestamp) -> Result<Vec<ContentFile>, DemoError> {
        let mut files = Vec::new();
        for rows in parts {
            let day = self.by_day.then(|| rows.day());
            let relative = self.relative(day, "rows.parquet");
            files.push(content::write_rows(&self.folder, &relative, *rows, day, at)?);
        }
        Ok(files)
    }

    /// A new name in the folder of a partition.
    fn relative(&mut self, day: Option<i32>, name: &str) -> String {
        let date = |days: i32| Timestamp(i64::from(days) * 86_400_000).show();
        let part = day.map(|day| format!("at_day={}/", &date(day)[..10])).unwrap_or_default();
        format!("data/{part}{}-{name}", self.ids.uuid())
    }

    async fn commit(&mut self, onto: Onto<'_>, at: Timestamp, mut change: Change) -> Result<i64, DemoError> {
        let from = match onto {
            Onto::Branch(branch) => branch,
            Onto::Staged { wap_id } => {
                change.notes.push(("wap.id", wap_id.to_owned()));
                RefName::MAIN
            }
        };
        let parent = self.heads.get(from).copied();
        if self.shape.format != FormatVersion::V1 {
            self.sequence += 1;
        }
        let commit = Commit { snapshot: self.ids.snapshot(), parent, sequence: self.sequence, at };
        let first_row_id = self.next_row_id;
        let summary = change.summary(self.live(from));
        let manifests = self.write_manifests(commit, change).await?;
        let relative = format!("metadata/snap-{}-0-{}.avro", commit.snapshot, self.ids.uuid());
        let list = self.shape.write_list(&self.folder, &relative, commit, &manifests, first_row_id).await?;
        self.snapshots.insert(commit.snapshot, manifests);

        let mut snapshot = json!({ "snapshot-id": commit.snapshot });
        if let Some(parent) = parent {
            snapshot["parent-snapshot-id"] = json!(parent);
        }
        if self.shape.format != FormatVersion::V1 {
            snapshot["sequence-number"] = json!(commit.sequence);
            self.metadata["last-sequence-number"] = json!(commit.sequence);
        }
        snapshot["timestamp-ms"] = json!(at);
        snapshot["summary"] = summary;
        snapshot["manifest-list"] = json!(list);
        snapshot["schema-id"] = json!(0);
        if self.shape.format == FormatVersion::V3 {
            snapshot["first-row-id"] = json!(first_row_id);
            snapshot["added-rows"] = json!(self.next_row_id - first_row_id);
            self.metadata["next-row-id"] = json!(self.next_row_id);
        }
        push(&mut self.metadata["snapshots"], snapshot);
        if let Onto::Branch(branch) = onto {
            self.move_head(branch, commit);
        }
        self.write_metadata(at)?;
        Ok(commit.snapshot)
    }

    fn move_head(&mut self, branch: &str, commit: Commit) {
        self.heads.insert(branch.to_owned(), commit.snapshot);
        let refs = &mut self.metadata["refs"];
        if refs[branch].is_null() {
            refs[branch] = json!({ "type": "branch" });
        }
        refs[branch]["snapshot-id"] = json!(commit.snapshot);
        if branch == RefName::MAIN {
            self.metadata["current-snapshot-id"] = json!(commit.snapshot);
            let entry = json!({ "timestamp-ms": commit.at, "snapshot-id": commit.snapshot });
            push(&mut self.metadata["snapshot-log"], entry);
        }
    }

    /// The parent's manifests, those with removed files written anew as one, and one for what was added.
    async fn write_manifests(&mut self, commit: Commit, change: Change) -> Result<Vec<Manifest>, DemoError> {
        let parent = commit.parent.and_then(|parent| self.snapshots.get(&parent)).cloned().unwrap_or_default();
        let is_removed = |entry: &Entry| change.removed.contains(&key(&entry.file));
        let (affected, mut kept): (Vec<_>, Vec<_>) =
            parent.into_iter().partition(|manifest| manifest.live().any(is_removed));
        // One that only tells of deletions is of no use to later snapshots.
        kept.retain(|manifest| manifest.live().next().is_some());
        let added = |is_data: bool| {
            change.added.iter().filter(move |file| file.is_data() == is_data).map(|file| Entry {
                status: Status::Added,
                file: file.clone(),
                snapshot: commit.snapshot,
                sequence: commit.sequence,
            })
        };
        let rewritten = |deletes: bool| {
            let manifests = affected.iter().filter(move |manifest| is_deletes(manifest) == deletes);
            manifests.flat_map(Manifest::live).map(|entry| {
                let status = if is_removed(entry) { Status::Deleted } else { Status::Existing };
                Entry { status, ..entry.clone() }
            })
        };
        let parts: [Vec<Entry>; 4] =
            [added(true).collect(), added(false).collect(), rewritten(false).collect(), rewritten(true).collect()];
        let name = self.ids.uuid();
        let mut written = Vec::new();
        for entries in parts.into_iter().filter(|entries| !entries.is_empty()) {
            let relative = format!("metadata/{name}-m{}.avro", written.len());
            let rows = &mut self.next_row_id;
            written.push(self.shape.write_manifest(&self.folder, &relative, commit, entries, rows).await?);
        }
        written.extend(kept);
        Ok(written)
    }

    /// Makes the metadata as it is now the current file, of time `at`, and logs the one before.
    fn write_metadata(&mut self, at: Timestamp) -> Result<(), DemoError> {
        debug_assert!(self.updated <= at, "a table's history is told in its order");
        if !self.metadata_location.is_empty() {
            let entry = json!({ "timestamp-ms": self.updated, "metadata-file": self.metadata_location });
            push(&mut self.metadata["metadata-log"], entry);
            self.version += 1;
        }
        self.updated = at;
        self.metadata["last-updated-ms"] = json!(at);
        let relative = format!("metadata/{:05}-{}.metadata.json", self.version, self.ids.uuid());
        let json = self.metadata.to_string();
        self.metadata_location = self.folder.write(&relative, json.as_bytes(), at)?;
        Ok(())
    }
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(items) = list {
        items.push(item);
    }
}
