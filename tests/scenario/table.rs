//! Builds one table of a scenario: its files, its metadata and the metadata before it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use icewarden::model::Timestamp;
use serde_json::{Map, Value, json};

use super::avro::{self, Entry, Listed};
use super::format::{
    EntryContent, EntryStatus, ManifestContent, ManifestSpec, RefSpec, RefType, SnapshotSpec, StatisticsKind,
    TableSpec, time,
};
use super::lake::{Later, SIZE, Table, World, canonical, filler, past};

/// Rows that every content file claims.
const ROWS: u64 = 10;

/// A number for a name that no snapshot has.
fn ghost(name: &str) -> i64 {
    name.parse()
        .unwrap_or_else(|_| 1_000_000 + name.bytes().fold(7_i64, |sum, byte| (sum * 31 + i64::from(byte)) % 999_983))
}

pub(crate) struct TableBuilder<'a> {
    spec: &'a TableSpec,
    now: Timestamp,
    world: &'a mut World,
    location: String,
    numbers: BTreeMap<String, i64>,
    keys: BTreeMap<&'a str, String>,
    sizes: BTreeMap<&'a str, u64>,
}

impl<'a> TableBuilder<'a> {
    pub(crate) fn location(spec: &TableSpec) -> String {
        spec.location.clone().unwrap_or_else(|| format!("s3://wh/{}", spec.name.replace('.', "/")))
    }

    pub(crate) fn new(spec: &'a TableSpec, now: Timestamp, world: &'a mut World) -> Result<Self, String> {
        let numbers: BTreeMap<_, _> = (1..).zip(&spec.snapshots).map(|(number, s)| (s.id.clone(), number)).collect();
        if numbers.len() != spec.snapshots.len() {
            return Err(format!("{}: two snapshots have one id", spec.name));
        }
        if !(1..=3).contains(&spec.format_version) {
            return Err(format!("{}: no format {}", spec.name, spec.format_version));
        }
        let mut this = Self {
            spec,
            now,
            world,
            location: Self::location(spec).trim_end_matches('/').to_owned(),
            numbers,
            keys: BTreeMap::new(),
            sizes: BTreeMap::new(),
        };
        for entry in spec.manifests.iter().flat_map(|manifest| &manifest.entries) {
            if let Some(key) = &entry.key {
                this.keys.entry(&entry.file).or_insert_with(|| key.clone());
            }
            if let Some(size) = entry.size {
                this.sizes.entry(&entry.file).or_insert(size);
            }
        }
        Ok(this)
    }

    fn number(&self, snapshot: &str) -> i64 {
        self.numbers.get(snapshot).copied().unwrap_or_else(|| ghost(snapshot))
    }

    fn place(&self, id: &str, key: Option<&String>, folder: &str, ending: &str) -> String {
        match key {
            Some(key) => key.clone(),
            None if id.contains("://") => id.to_owned(),
            None => format!("{}/{folder}/{id}.{ending}", self.location),
        }
    }

    fn content_place(&self, file: &str, key: Option<&String>) -> String {
        self.place(file, key.or(self.keys.get(file)), "data", "parquet")
    }

    fn put(&mut self, id: &str, location: &str, bytes: Bytes) -> Result<String, String> {
        let at = canonical(location)?;
        let same = self.world.ids.entry(id.to_owned()).or_default();
        let mine = |one: &&String| one.starts_with(&format!("{}/", self.location));
        if let Some(other) = same.iter().filter(mine).find(|one| **one != at) {
            return Err(format!("{id} is at {other} and at {at}"));
        }
        same.insert(at.clone());
        self.world.objects.entry(at.clone()).or_insert((bytes, past(self.now)));
        Ok(at)
    }

    /// The first snapshot that lists this manifest.
    fn adder(&self, manifest: &str) -> i64 {
        let first = self.spec.snapshots.iter().find(|s| s.manifests.iter().any(|one| one == manifest));
        first.map_or(0, |snapshot| self.number(&snapshot.id))
    }

    /// The snapshot that added this file.
    fn file_adder(&self, file: &str) -> i64 {
        let adders = |status: EntryStatus| {
            let manifests = self.spec.manifests.iter();
            manifests
                .filter(|m| m.entries.iter().any(|entry| entry.file == file && entry.status == status))
                .map(|m| self.adder(&m.id))
                .min()
        };
        adders(EntryStatus::Added).or_else(|| adders(EntryStatus::Existing)).unwrap_or(0)
    }

    fn entries(&self, manifest: &ManifestSpec) -> Vec<Entry> {
        let adder = self.adder(&manifest.id);
        let format = self.spec.format_version;
        manifest
            .entries
            .iter()
            .map(|entry| {
                let default = match manifest.content {
                    ManifestContent::Data => EntryContent::Data,
                    ManifestContent::Deletes => EntryContent::Position,
                };
                let content = entry.content.unwrap_or(default);
                let (status, snapshot) = match entry.status {
                    EntryStatus::Existing => (0, self.file_adder(&entry.file)),
                    EntryStatus::Added => (1, adder),
                    EntryStatus::Deleted => (2, adder),
                };
                // What is added inherits both from the list, as writers leave it.
                let inherits = status == 1 && format > 1;
                Entry {
                    status,
                    snapshot: (!inherits).then_some(snapshot),
                    sequence_number: (!inherits).then(|| self.file_adder(&entry.file)),
                    content: match content {
                        EntryContent::Data => 0,
                        EntryContent::Position | EntryContent::Dv => 1,
                        EntryContent::Equality => 2,
                    },
                    location: self.content_place(&entry.file, entry.key.as_ref()),
                    format: if content == EntryContent::Dv { "PUFFIN" } else { "PARQUET" },
                    size: entry.size.or(self.sizes.get(entry.file.as_str()).copied()).unwrap_or(SIZE),
                    records: ROWS,
                    offset: entry.offset.or((content == EntryContent::Dv).then_some(4)),
                    length: entry.length.or((content == EntryContent::Dv).then_some(40)),
                    referenced: entry.references.as_deref().map(|file| self.content_place(file, None)),
                }
            })
            .collect()
    }

    pub(crate) fn build(mut self) -> Result<Table, String> {
        let spec = self.spec;
        let mut listed = BTreeMap::new();
        let mut needs_of_manifest: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for manifest in &spec.manifests {
            let entries = self.entries(manifest);
            let mut needs = BTreeSet::new();
            for (entry, written) in manifest.entries.iter().zip(&entries) {
                let size = self.sizes.get(entry.file.as_str()).copied().unwrap_or(SIZE);
                let at = self.put(&entry.file, &written.location, filler(size))?;
                if entry.status != EntryStatus::Deleted {
                    needs.insert(at);
                }
            }
            let deletes = manifest.content == ManifestContent::Deletes;
            let bytes = avro::manifest(spec.format_version, &spec.partition_fields, deletes, &entries);
            let location = self.place(&manifest.id, manifest.key.as_ref(), "metadata", "avro");
            let adder = self.adder(&manifest.id);
            let count = |status: i64| entries.iter().filter(|entry| entry.status == status).count() as u64;
            let files = [count(1), count(0), count(2)];
            let oldest =
                entries.iter().filter(|entry| entry.status != 2).filter_map(|entry| entry.sequence_number).min();
            let facts = Listed {
                location: location.clone(),
                length: bytes.len() as u64,
                deletes,
                sequence_number: adder,
                min_sequence_number: oldest.unwrap_or(adder).min(adder),
                adder,
                files,
                rows: files.map(|files| files * ROWS),
            };
            needs.insert(self.put(&manifest.id, &location, Bytes::from(bytes))?);
            needs_of_manifest.insert(&manifest.id, needs);
            if listed.insert(manifest.id.as_str(), facts).is_some() {
                return Err(format!("{}: two manifests {}", spec.name, manifest.id));
            }
        }
        let mut snapshots = Vec::new();
        let mut needs = BTreeMap::new();
        for snapshot in &spec.snapshots {
            let mut reached = BTreeSet::new();
            let mut manifests = Vec::new();
            for id in &snapshot.manifests {
                let facts = listed.get(id.as_str()).ok_or_else(|| format!("{}: no manifest {id}", snapshot.id))?;
                manifests.push(facts.clone());
                reached.extend(needs_of_manifest[id.as_str()].iter().cloned());
            }
            let (json, list) = self.snapshot(snapshot, &manifests)?;
            reached.extend(list);
            needs.insert(self.number(&snapshot.id), reached);
            snapshots.push(json);
        }
        for statistics in &spec.statistics {
            let location = self.place(&statistics.file, statistics.key.as_ref(), "metadata", "puffin");
            let at = self.put(&statistics.file, &location, filler(SIZE))?;
            needs.entry(self.number(&statistics.snapshot)).or_default().insert(at);
        }
        let mut later = BTreeMap::new();
        let mut present = Vec::new();
        for (snapshot, json) in spec.snapshots.iter().zip(snapshots) {
            if snapshot.later {
                let refs = spec.refs.iter().filter(|r| r.snapshot == snapshot.id);
                let refs = refs.map(|r| (r.name.clone(), self.reference(r))).collect();
                later.insert(snapshot.id.clone(), Later { snapshot: json, refs });
            } else {
                present.push((snapshot, json));
            }
        }
        let mut log = Vec::new();
        for (index, id) in spec.metadata_log.iter().enumerate() {
            let less = spec.metadata_log.len() - index;
            let held = &present[..present.len().saturating_sub(less)];
            let metadata = self.metadata(held, &log, true)?;
            let location = self.place(id, None, "metadata", "metadata.json");
            log.push(json!({"timestamp-ms": metadata["last-updated-ms"], "metadata-file": location}));
            self.put(id, &location, Bytes::from(metadata.to_string()))?;
        }
        let metadata = self.metadata(&present, &log, false)?;
        let metadata_location = self.place(&spec.metadata, None, "metadata", "metadata.json");
        self.put(&spec.metadata, &metadata_location, Bytes::from(metadata.to_string()))?;
        let mut sightings = Vec::new();
        for spec in &spec.refs {
            if let Some(created) = &spec.created {
                sightings.push((spec.name.clone(), time(created, self.now)?));
            }
        }
        Ok(Table {
            name: spec.name.clone(),
            catalogued: spec.catalogued,
            root: format!("{}/", canonical(&self.location)?),
            metadata_location,
            metadata,
            snapshots: self.numbers,
            later,
            needs,
            sightings,
        })
    }

    fn snapshot(&mut self, spec: &SnapshotSpec, manifests: &[Listed]) -> Result<(Value, Option<String>), String> {
        let format = self.spec.format_version;
        let number = self.number(&spec.id);
        let parent = (!spec.parent.is_empty()).then(|| self.number(&spec.parent));
        let mut summary = Map::from_iter([("operation".to_owned(), json!("append"))]);
        summary.extend(spec.summary.iter().map(|(key, value)| (key.clone(), json!(value))));
        let mut json = json!({
            "snapshot-id": number,
            "timestamp-ms": time(&spec.at, self.now)?.0,
            "summary": summary,
            "schema-id": 0,
        });
        if let Some(parent) = parent {
            json["parent-snapshot-id"] = json!(parent);
        }
        if format > 1 {
            json["sequence-number"] = json!(number);
        }
        if format > 2 {
            json["first-row-id"] = json!(0);
            json["added-rows"] = json!(manifests.iter().map(|manifest| manifest.rows[0]).sum::<u64>());
        }
        if spec.list.is_empty() && format == 1 {
            json["manifests"] = json!(manifests.iter().map(|manifest| &manifest.location).collect::<Vec<_>>());
            return Ok((json, None));
        }
        if spec.list.is_empty() {
            return Err(format!("{}: a snapshot of format {format} has a list", spec.id));
        }
        let location = self.place(&spec.list, spec.key.as_ref(), "metadata", "avro");
        json["manifest-list"] = json!(location);
        // Of snapshots that share a list, the first has written it.
        let written = &manifests[..manifests.len().saturating_sub(spec.cut)];
        let bytes = avro::manifest_list(format, number, parent, number, written);
        let at = self.put(&spec.list, &location, Bytes::from(bytes))?;
        Ok((json, Some(at)))
    }

    fn reference(&self, spec: &RefSpec) -> Value {
        let mut json = json!({
            "snapshot-id": self.number(&spec.snapshot),
            "type": match spec.kind { RefType::Branch => "branch", RefType::Tag => "tag" },
        });
        for (name, value) in [
            ("max-ref-age-ms", spec.max_ref_age.map(|age| age.0)),
            ("max-snapshot-age-ms", spec.max_snapshot_age.map(|age| age.0)),
            ("min-snapshots-to-keep", spec.min_snapshots_to_keep),
        ] {
            if let Some(value) = value {
                json[name] = json!(value);
            }
        }
        json
    }

    /// A metadata file that holds these snapshots.
    fn metadata(&self, held: &[(&SnapshotSpec, Value)], log: &[Value], logged: bool) -> Result<Value, String> {
        let spec = self.spec;
        let ids: BTreeSet<i64> = held.iter().map(|(snapshot, _)| self.number(&snapshot.id)).collect();
        let is_later = |name: &str| spec.snapshots.iter().any(|snapshot| snapshot.later && snapshot.id == name);
        let mut refs = Map::new();
        for one in &spec.refs {
            let number = self.number(&one.snapshot);
            if is_later(&one.snapshot) || logged && !ids.contains(&number) {
                continue;
            }
            refs.insert(one.name.clone(), self.reference(one));
        }
        if let Some((last, _)) = held.last() {
            // A logged file's `main` is where it was then.
            if logged || !spec.refs.iter().any(|one| one.name == "main" && !is_later(&one.snapshot)) {
                let main = refs.entry("main").or_insert_with(|| json!({"type": "branch"}));
                main["snapshot-id"] = json!(self.number(&last.id));
            }
        }
        let main = refs.get("main").and_then(|main| main["snapshot-id"].as_i64());
        let mut updated = past(self.now).0;
        for (snapshot, _) in held {
            updated = updated.max(time(&snapshot.at, self.now)?.0);
        }
        let version = spec.format_version;
        let schema = avro::table_schema(&spec.partition_fields);
        let fields = avro::partition_spec(&spec.partition_fields);
        let uuid = spec.uuid.clone().unwrap_or_else(|| format!("00000000-0000-4000-8000-{:012x}", ghost(&spec.name)));
        let mut json = json!({
            "format-version": version,
            "table-uuid": uuid,
            "location": self.spec.location.clone().unwrap_or_else(|| self.location.clone()),
        });
        if version > 1 {
            json["last-sequence-number"] = json!(ids.last().copied().unwrap_or(0));
        }
        json["last-updated-ms"] = json!(updated);
        json["last-column-id"] = json!(spec.partition_fields.len() + 1);
        if version == 1 {
            json["schema"] = schema.clone();
            json["partition-spec"] = json!(fields);
        }
        json["current-schema-id"] = json!(0);
        json["schemas"] = json!([schema]);
        json["default-spec-id"] = json!(0);
        json["partition-specs"] = json!([{"spec-id": 0, "fields": fields}]);
        json["last-partition-id"] = json!(999 + spec.partition_fields.len());
        json["default-sort-order-id"] = json!(0);
        json["sort-orders"] = json!([{"order-id": 0, "fields": []}]);
        json["properties"] = json!(spec.properties);
        match main {
            Some(main) => json["current-snapshot-id"] = json!(main),
            None if version < 3 => json["current-snapshot-id"] = json!(-1),
            None => {}
        }
        if version > 2 {
            json["next-row-id"] = json!(ROWS * spec.manifests.len() as u64 * 100);
        }
        json["refs"] = Value::Object(refs);
        json["snapshots"] = json!(held.iter().map(|(_, json)| json).collect::<Vec<_>>());
        for (name, kind) in [("statistics", StatisticsKind::Table), ("partition-statistics", StatisticsKind::Partition)]
        {
            let mut files = Vec::new();
            for one in spec.statistics.iter().filter(|one| one.kind == kind) {
                if !ids.contains(&self.number(&one.snapshot)) {
                    continue;
                }
                let location = self.place(&one.file, one.key.as_ref(), "metadata", "puffin");
                let mut file = json!({
                    "snapshot-id": self.number(&one.snapshot),
                    "statistics-path": location,
                    "file-size-in-bytes": SIZE,
                });
                if kind == StatisticsKind::Table {
                    file["file-footer-size-in-bytes"] = json!(SIZE / 2);
                    file["blob-metadata"] = json!([]);
                }
                files.push(file);
            }
            json[name] = json!(files);
        }
        json["snapshot-log"] = json!(history(main, held.iter().map(|(_, json)| json)));
        json["metadata-log"] = json!(log);
        Ok(json)
    }
}

/// The snapshot log of a table whose `main` has only ever moved forward.
fn history<'v>(main: Option<i64>, snapshots: impl Iterator<Item = &'v Value>) -> Vec<Value> {
    let by_id: BTreeMap<i64, &Value> = snapshots.filter_map(|s| Some((s["snapshot-id"].as_i64()?, s))).collect();
    let (mut log, mut met, mut next) = (Vec::new(), BTreeSet::new(), main);
    while let Some(id) = next.filter(|id| met.insert(*id)) {
        let Some(snapshot) = by_id.get(&id) else { break };
        log.push((id, snapshot["timestamp-ms"].as_i64().unwrap_or_default()));
        next = snapshot.get("parent-snapshot-id").and_then(Value::as_i64);
    }
    // The log is sorted, also where the writers' clocks ran backwards.
    let mut latest = i64::MIN;
    let in_order = log.into_iter().rev().map(|(id, at)| {
        latest = latest.max(at);
        json!({"snapshot-id": id, "timestamp-ms": latest})
    });
    in_order.collect()
}
