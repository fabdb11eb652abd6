//! The orphan job on a table of 20 million objects: `cargo bench --bench orphans`, or `-- 1000000` for fewer.
//! Prints time, CPU per million objects and peak memory; asserts that exactly the planted orphans are marked.
//!
//! The manifests are real files, deflated, of 100,000 entries each; the listing is made up while it is asked for, one
//! object in a hundred an orphan. Making it costs CPU too, which counts: it stands for parsing pages.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a benchmark's world is known")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "numbers of a benchmark are small")]

#[allow(dead_code, unused_imports, clippy::match_bool, reason = "the scenarios' writer, of which a part is used")]
#[path = "../tests/scenario/avro.rs"]
mod avro;
#[path = "made/container.rs"]
mod container;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use icewarden::catalog::sql::SqlCatalog;
use icewarden::clock::Clock;
use icewarden::config::{CatalogConfig, CatalogKind, Config, Secret};
use icewarden::model::{Age, LocationRules, TableName, Timestamp};
use icewarden::report::{Job, Outcome};
use icewarden::run::{Lake, RunRequest, run};
use icewarden::storage::Storage;
use object_store::local::LocalFileSystem;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use serde_json::json;
use uuid::Uuid;

use container::{Container, blocks};

const OBJECTS: usize = 20_000_000;
const EACH: usize = 100_000;
/// One object in so many is an orphan.
const ORPHAN: usize = 100;
const LOCATION: &str = "s3://made/db/big";
const CATALOG: &str = "lake";
const SIZE: u64 = 1 << 20;

type AnyResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> AnyResult<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", folder, objects] => orphans(Path::new(folder), objects.parse()?),
        [] => both(OBJECTS),
        [objects] => both(objects.parse()?),
        _ => Err("usage: cargo bench --bench orphans [-- OBJECTS]".into()),
    }
}

fn both(objects: usize) -> AnyResult<()> {
    let scratch = tempfile::Builder::new().prefix("icewarden-bench").tempdir()?;
    make(scratch.path(), objects)?;
    // In a process of its own, so that its peak memory is that of the run.
    let run =
        Command::new(std::env::current_exe()?).arg("run").arg(scratch.path()).arg(objects.to_string()).status()?;
    assert!(run.success(), "the run failed");
    Ok(())
}

fn name() -> TableName {
    TableName { catalog: CATALOG.to_owned(), namespace: vec!["db".to_owned()], name: "big".to_owned() }
}

fn database(folder: &Path, name: &str) -> Secret {
    Secret::new(format!("sqlite://{}", folder.join(name).display()))
}

fn runtime() -> AnyResult<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// The key below the table of the object with this number: as Spark names files, in folders by day.
fn key(number: usize) -> String {
    let (day, task) = (number % 1000, number / 1000);
    let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("data/day={day:04}/{task:05}-{number}-{hash:016x}-{:016x}-00001.parquet", hash.rotate_left(29))
}

/// Writes manifests of all objects but the orphans, and enters the table in a new catalog.
fn make(folder: &Path, objects: usize) -> AnyResult<()> {
    let metadata = folder.join("db/big/metadata");
    fs::create_dir_all(&metadata)?;
    let named: Vec<usize> = (0..objects).filter(|number| number % ORPHAN > 0).collect();
    let mut listed = Vec::new();
    for (at, files) in named.chunks(EACH).enumerate() {
        let entries: Vec<avro::Entry> = files
            .iter()
            .map(|number| avro::Entry {
                status: 1,
                snapshot: Some(1),
                sequence_number: Some(1),
                content: 0,
                location: format!("{LOCATION}/{}", key(*number)),
                format: "PARQUET",
                size: SIZE,
                records: 10,
                offset: None,
                length: None,
                referenced: None,
            })
            .collect();
        let plain = avro::manifest(2, &[], false, &entries);
        let mut packed = Container::like(&avro::manifest(2, &[], false, &[]), "deflate");
        for (rows, bytes) in blocks(&plain) {
            packed.block(rows, bytes);
        }
        let file = format!("{at:05}-m0.avro");
        fs::write(metadata.join(&file), &packed.file)?;
        listed.push(avro::Listed {
            location: format!("{LOCATION}/metadata/{file}"),
            length: packed.file.len() as u64,
            deletes: false,
            sequence_number: 1,
            min_sequence_number: 1,
            adder: 1,
            files: [files.len() as u64, 0, 0],
            rows: [10 * files.len() as u64, 0, 0],
        });
    }
    fs::write(metadata.join("snap-1.avro"), avro::manifest_list(2, 1, None, 1, &listed))?;
    let at = Clock::System.now().minus(Age::days(6)).0;
    let head = json!({"type": "branch", "snapshot-id": 1});
    let table = json!({
        "format-version": 2, "table-uuid": Uuid::new_v4(), "location": LOCATION,
        "last-sequence-number": 1, "last-updated-ms": at, "last-column-id": 1,
        "current-schema-id": 0, "schemas": [avro::table_schema(&[])],
        "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
        "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {}, "current-snapshot-id": 1, "refs": {"main": head},
        "snapshots": [{
            "snapshot-id": 1, "sequence-number": 1, "schema-id": 0, "timestamp-ms": at,
            "manifest-list": format!("{LOCATION}/metadata/snap-1.avro"), "summary": {"operation": "append"},
        }],
        "statistics": [], "snapshot-log": [], "metadata-log": [],
    });
    fs::write(metadata.join("00000-a.metadata.json"), serde_json::to_vec(&table)?)?;
    runtime()?.block_on(async {
        let catalog = SqlCatalog::create(CATALOG, &database(folder, "catalog.db"), storage(folder, 0)?).await?;
        catalog.register(&name(), &format!("{LOCATION}/metadata/00000-a.metadata.json")).await?;
        Ok(())
    })
}

fn storage(folder: &Path, objects: usize) -> AnyResult<Storage> {
    let files = LocalFileSystem::new_with_prefix(folder)?;
    let made = Made { files, objects, at: Clock::System.now().minus(Age::days(10)) };
    Ok(Storage::new(LocationRules::default(), BTreeMap::new(), 16).with_store("s3://made", Arc::new(made)))
}

/// The run itself, with its figures.
fn orphans(folder: &Path, objects: usize) -> AnyResult<()> {
    let mut config = Config::built_in_defaults();
    config.catalogs = vec![CatalogConfig {
        name: CATALOG.to_owned(),
        kind: CatalogKind::Sql { uri: database(folder, "catalog.db") },
        warehouse: None,
    }];
    config.state.database = database(folder, "state.db");
    config.state.plans = format!("file://{}/plans", folder.display());
    let limit = config.limits.memory;
    let request = RunRequest { apply: true, ..RunRequest::look(Job::Orphans, "bench") };
    let storage = storage(folder, objects)?;
    let began = Clock::boot_ms();
    let report = runtime()?.block_on(async {
        let lake = Lake::open_with(config, Clock::System, storage).await?;
        Ok::<_, Box<dyn std::error::Error>>(run(&lake, &request).await?)
    })?;
    let took = Duration::from_millis(Clock::boot_ms() - began);
    let [table] = &report.tables[..] else { panic!("one table: {report:?}") };
    assert_eq!(table.outcome, Outcome::Done, "{:?}", table.reason);
    let orphans = objects.div_ceil(ORPHAN) as u64;
    assert_eq!((table.counts.marked_objects, table.counts.marked_bytes), (orphans, orphans * SIZE));
    let listed = table.orphans.as_ref().map_or(0, |plan| plan.listed.objects);
    assert!(listed > objects as u64);
    let cpu = Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime))?;
    let peak = peak_memory()?;
    println!("| what | |");
    println!("|---|---|");
    println!("| objects listed | {listed} |");
    println!("| orphans marked | {} |", table.counts.marked_objects);
    println!("| wall time | {:.1} s |", took.as_secs_f64());
    println!("| CPU time for a million objects | {:.2} s |", cpu.as_secs_f64() * 1e6 / listed as f64);
    println!("| peak memory (VmHWM) | {} MiB of {} MiB |", peak >> 10, limit >> 20);
    assert!(peak << 10 <= limit, "more memory than [limits] memory allows");
    Ok(())
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

/// Metadata in files, and data that is only listed.
#[derive(Debug)]
struct Made {
    files: LocalFileSystem,
    objects: usize,
    at: Timestamp,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("made")
    }
}

#[async_trait]
impl ObjectStore for Made {
    async fn put_opts(
        &self,
        to: &object_store::path::Path,
        data: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.files.put_opts(to, data, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &object_store::path::Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &object_store::path::Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<object_store::path::Path>>,
    ) -> BoxStream<'static, Result<object_store::path::Path>> {
        self.files.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&object_store::path::Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let last_modified = chrono::DateTime::from_timestamp_millis(self.at.0).unwrap();
        let made = (0..self.objects).map(move |number| {
            Ok(ObjectMeta {
                location: icewarden::model::location::path_of_key("s3", &format!("db/big/{}", key(number))).unwrap(),
                last_modified,
                size: SIZE,
                e_tag: Some(format!("\"{:032x}\"", number as u128 * 0x9e37_79b9_7f4a_7c15)),
                version: None,
            })
        });
        self.files.list(prefix).chain(stream::iter(made)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&object_store::path::Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &object_store::path::Path,
        to: &object_store::path::Path,
        options: CopyOptions,
    ) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}
