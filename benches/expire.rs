//! Expires 20,000 snapshots to 5 on local files, with clean-up: `cargo bench --bench expire`.
//! Prints time, peak memory and what was deleted; asserts that what goes is gone and what is needed is there.
//!
//! The table: 200 manifests of 1,000 files each, one added every 100 snapshots; each snapshot's list has all
//! of them so far, till a last overwrite, in the newest 5 snapshots, leaves 50. So the lists have two million
//! entries in all, 150,000 data files go and 50,000 stay. `main` and a branch `audit` point at the newest.
//!
//! `cargo bench --bench expire -- make FOLDER` only makes the lake and prints how Iceberg Java's own expiry is run on
//! it; `-- run FOLDER` runs ours on it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a benchmark's world is known")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "numbers of a benchmark are small")]

#[allow(dead_code, unused_imports, clippy::match_bool, reason = "the scenarios' writer, of which a part is used")]
#[path = "../tests/scenario/avro.rs"]
mod avro;
#[path = "made/container.rs"]
mod container;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use iceberg::spec::{Manifest, TableMetadata};
use icewarden::catalog::sql::SqlCatalog;
use icewarden::clock::Clock;
use icewarden::config::{CatalogConfig, CatalogKind, Config, Secret};
use icewarden::inventory::manifests::read_manifest_list;
use icewarden::model::{Age, LocationRules, TableName};
use icewarden::report::{Job, Outcome};
use icewarden::run::{Lake, RunRequest, run};
use icewarden::storage::Storage;
use serde_json::json;
use uuid::Uuid;

use container::{Container, blocks};

const SNAPSHOTS: usize = 20_000;
const MANIFESTS: usize = 200;
const FILES_EACH: usize = 1_000;
/// Manifests in the lists of the newest snapshots.
const STAY: usize = 50;
const RETAINED: usize = 5;
const MINUTE: i64 = 60_000;
/// A data file; nothing reads it.
const CONTENT: &[u8] = b"PAR1";
const CATALOG: &str = "lake";
const NAMESPACE: &str = "bench";
const TABLE: &str = "big";

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> AnyResult<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let scratch = tempfile::Builder::new().prefix("icewarden-bench").tempdir()?;
            make(scratch.path())?;
            // In a process of its own, so that its peak memory is that of the run.
            let status = Command::new(std::env::current_exe()?).arg("run").arg(scratch.path()).status()?;
            assert!(status.success(), "the run failed");
            check(scratch.path())
        }
        ["make", folder] => {
            fs::create_dir_all(folder)?;
            let folder = fs::canonicalize(folder)?;
            make(&folder)?;
            println!("the lake is in {}; Iceberg Java's own expiry of it:", folder.display());
            println!(
                "tests/run --parts bash -c '/usr/bin/time -v java -cp \"$ICEWARDEN_JAVA_CORE\" CoreOracle {} {} {CATALOG} $(($(date +%s%3N) - 5 * 86400000)) {RETAINED} {NAMESPACE}.{TABLE} | cut -c1-80'",
                folder.join("catalog.db").display(),
                folder.display(),
            );
            Ok(())
        }
        ["run", folder] => expire(&fs::canonicalize(folder)?),
        ["check", folder] => check(&fs::canonicalize(folder)?),
        _ => Err("usage: cargo bench --bench expire [-- make FOLDER | run FOLDER | check FOLDER]".into()),
    }
}

fn name() -> TableName {
    TableName { catalog: CATALOG.to_owned(), namespace: vec![NAMESPACE.to_owned()], name: TABLE.to_owned() }
}

fn table(folder: &Path) -> PathBuf {
    folder.join(NAMESPACE).join(TABLE)
}

fn location(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn database(folder: &Path, name: &str) -> Secret {
    Secret::new(format!("sqlite://{}", folder.join(name).display()))
}

fn runtime() -> AnyResult<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Writes the table's files, newest snapshot 6 days old, and enters it in a new catalog.
fn make(folder: &Path) -> AnyResult<()> {
    let table = table(folder);
    fs::create_dir_all(table.join("metadata"))?;
    let newest = Clock::System.now().minus(Age::days(6)).0;
    // A row of a manifest list for each manifest.
    let mut rows = Vec::new();
    for manifest in 0..MANIFESTS {
        rows.push(write_manifest(&table, manifest)?);
    }
    let mut snapshots = Vec::new();
    for id in 1..=SNAPSHOTS {
        let is_new = id > SNAPSHOTS - RETAINED;
        let end = (id - 1) * MANIFESTS / SNAPSHOTS + 1;
        let begin = if is_new { end - STAY } else { 0 };
        let parent = (id > 1).then_some(id as i64 - 1);
        let empty = avro::manifest_list(2, id as i64, parent, id as i64, &[]);
        let mut list = Container::like(&empty, "deflate");
        list.block(end - begin, &rows[begin..end].concat());
        let path = table.join(format!("metadata/snap-{id}-1-{}.avro", Uuid::from_u128(id as u128)));
        fs::write(&path, &list.file)?;
        let mut snapshot = json!({
            "snapshot-id": id, "sequence-number": id, "schema-id": 0,
            "timestamp-ms": newest - (SNAPSHOTS - id) as i64 * MINUTE,
            "manifest-list": location(&path),
            "summary": {
                "operation": if is_new { "overwrite" } else { "append" },
                "total-data-files": ((end - begin) * FILES_EACH).to_string(),
                "total-records": ((end - begin) * FILES_EACH * 10).to_string(),
            },
        });
        // Java takes no null here.
        if let Some(parent) = parent {
            snapshot["parent-snapshot-id"] = json!(parent);
        }
        snapshots.push(snapshot);
    }
    let log: Vec<_> = snapshots
        .iter()
        .map(|snapshot| json!({"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}))
        .collect();
    let head = json!({"type": "branch", "snapshot-id": SNAPSHOTS});
    let metadata = json!({
        "format-version": 2, "table-uuid": Uuid::new_v4(), "location": location(&table),
        "last-sequence-number": SNAPSHOTS, "last-updated-ms": newest, "last-column-id": 1,
        "current-schema-id": 0, "schemas": [avro::table_schema(&[])],
        "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
        "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {}, "current-snapshot-id": SNAPSHOTS, "refs": {"main": head, "audit": head},
        "snapshots": snapshots, "statistics": [], "snapshot-log": log, "metadata-log": [],
    });
    let path = table.join(format!("metadata/00000-{}.metadata.json", Uuid::new_v4()));
    fs::write(&path, serde_json::to_vec(&metadata)?)?;
    runtime()?.block_on(async {
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 1);
        let catalog = SqlCatalog::create(CATALOG, &database(folder, "catalog.db"), storage).await?;
        catalog.register(&name(), &location(&path)).await?;
        Ok(())
    })
}

/// Writes a manifest and its data files; returns its row in a manifest list.
fn write_manifest(table: &Path, number: usize) -> AnyResult<Vec<u8>> {
    let sequence = (number * (SNAPSHOTS / MANIFESTS) + 1) as i64;
    let data = table.join(format!("data/day={number:03}"));
    fs::create_dir_all(&data)?;
    let mut entries = Vec::new();
    for file in 0..FILES_EACH {
        let path = data.join(format!("{file:05}-{}-00001.parquet", Uuid::new_v4()));
        fs::write(&path, CONTENT)?;
        entries.push(avro::Entry {
            status: 1,
            snapshot: Some(sequence),
            sequence_number: Some(sequence),
            content: 0,
            location: location(&path),
            format: "PARQUET",
            size: CONTENT.len() as u64,
            records: 10,
            offset: None,
            length: None,
            referenced: None,
        });
    }
    let bytes = avro::manifest(2, &[], false, &entries);
    let path = table.join(format!("metadata/{}-m0.avro", Uuid::new_v4()));
    fs::write(&path, &bytes)?;
    let listed = avro::Listed {
        location: location(&path),
        length: bytes.len() as u64,
        deletes: false,
        sequence_number: sequence,
        min_sequence_number: sequence,
        adder: sequence,
        files: [FILES_EACH as u64, 0, 0],
        rows: [10 * FILES_EACH as u64, 0, 0],
    };
    let list = avro::manifest_list(2, sequence, None, sequence, &[listed]);
    Ok(blocks(&list)[0].1.to_vec())
}

/// The run itself, with its figures.
fn expire(folder: &Path) -> AnyResult<()> {
    let mut config = Config::built_in_defaults();
    config.catalogs = vec![CatalogConfig {
        name: CATALOG.to_owned(),
        kind: CatalogKind::Sql { uri: database(folder, "catalog.db") },
        warehouse: None,
    }];
    config.state.database = database(folder, "state.db");
    config.state.plans = location(&folder.join("plans"));
    config.expire.retain_last = RETAINED as u32;
    config.expire.grace = Age::ZERO;
    let request = RunRequest { apply: true, ..RunRequest::look(Job::Expire, "bench") };
    let began = Clock::boot_ms();
    let report = runtime()?.block_on(async {
        let lake = Lake::open(config, Clock::System).await?;
        Ok::<_, Box<dyn std::error::Error>>(run(&lake, &request).await?)
    })?;
    let took = Duration::from_millis(Clock::boot_ms() - began);
    let [table] = &report.tables[..] else { panic!("one table: {report:?}") };
    assert_eq!(table.outcome, Outcome::Done, "{:?}", table.reason);
    let counts = &table.counts;
    println!("| what | |");
    println!("|---|---|");
    println!("| wall time | {:.1} s |", took.as_secs_f64());
    println!("| CPU time | {:.1} s |", cpu_time().as_secs_f64());
    println!("| peak memory (VmHWM) | {} MiB |", peak_memory()? >> 10);
    println!("| snapshots expired | {} |", counts.expired_snapshots);
    println!("| commits | {} |", counts.commits);
    println!("| files deleted | {} |", counts.deleted_objects);
    assert_eq!(counts.expired_snapshots as usize, SNAPSHOTS - RETAINED);
    // Lists, manifests, data files; not the metadata file of before, which the log still names.
    let gone = MANIFESTS - STAY;
    assert_eq!(counts.deleted_objects as usize, SNAPSHOTS - RETAINED + gone + gone * FILES_EACH);
    Ok(())
}

/// Of this process so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// In KiB. Linux only; 0 elsewhere.
fn peak_memory() -> AnyResult<u64> {
    let status = match fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Every file that a remaining snapshot needs is there, and no other file of the table.
fn check(folder: &Path) -> AnyResult<()> {
    let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 1);
    let metadata: TableMetadata = runtime()?.block_on(async {
        let catalog = SqlCatalog::open(CATALOG, &database(folder, "catalog.db"), None, storage).await?;
        let loaded = catalog.load(&name()).await?;
        Ok::<_, Box<dyn std::error::Error>>(serde_json::from_slice(&loaded.metadata)?)
    })?;
    assert_eq!(metadata.snapshots().len(), RETAINED);
    let path = |location: &str| PathBuf::from(location.strip_prefix("file://").unwrap_or(location));
    let mut needed = std::collections::BTreeSet::new();
    for snapshot in metadata.snapshots() {
        let list = path(snapshot.manifest_list());
        for manifest in read_manifest_list(&fs::read(&list)?, snapshot.manifest_list())? {
            if needed.insert(path(&manifest.location)) {
                // Slow, but not ours.
                let manifest = Manifest::parse_avro(&fs::read(path(&manifest.location))?)?;
                needed.extend(manifest.entries().iter().map(|entry| path(entry.file_path())));
            }
        }
        needed.insert(list);
    }
    assert_eq!(needed.len(), RETAINED + STAY + STAY * FILES_EACH);
    for file in &needed {
        assert!(file.try_exists()?, "{} is needed and not there", file.display());
    }
    let mut left = 0;
    let mut folders = vec![table(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.to_string_lossy().ends_with(".metadata.json") {
                assert!(needed.contains(&path), "{} is not needed and still there", path.display());
                left += 1;
            }
        }
    }
    assert_eq!(left, needed.len());
    println!("| files left, each needed and there | {left} |");
    Ok(())
}
