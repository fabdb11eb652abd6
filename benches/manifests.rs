//! How fast manifests and manifest lists are read, beside inflating them alone and beside the `iceberg` crate:
//! `cargo bench --bench manifests`. Asserts that all readers give the same answer, never how fast.
//!
//! Run by `tests/run --parts`, it also starts Iceberg Java on the same files, and prints the ratios.
//!
//! All work is of one thread and measured in its CPU time, so other work on the machine weighs less. The readers
//! take turns, and each figure is the median of seven rounds; a ratio is the median of the rounds' ratios.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark's world is known, and tests/run says in the environment where Java is"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "numbers of a benchmark are small"
)]

#[allow(dead_code, unused_imports, clippy::match_bool, reason = "the scenarios' writer, of which a part is used")]
#[path = "../tests/scenario/avro.rs"]
mod avro;
#[path = "made/container.rs"]
mod container;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use iceberg::spec::{FormatVersion, Manifest, ManifestList};
use icewarden::inventory::manifests::{
    ManifestContent, ManifestCounts, ManifestRef, read_manifest, read_manifest_list,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use container::{Container, blocks, bytes, long};

const ROUNDS: usize = 7;
const ENTRIES: usize = 50_000;
/// The `iceberg` crate takes so long for 50,000 that it reads a file of fewer, made in the same way.
const CRATE_ENTRIES: usize = 5_000;
const LISTED: usize = 5_000;
const COLUMNS: usize = 20;
/// Raw bytes at which Java's writers close a block.
const BLOCK: usize = 64_000;
const SNAPSHOT: i64 = 3_051_729_675_574_597_004;

/// What every reader must say: entries, the sum of the sizes, a hash of all locations.
type Answer = (usize, u64, u64);

fn add(answer: &mut Answer, location: &str, size: u64) {
    answer.0 += 1;
    answer.1 += size;
    answer.2 = answer.2.wrapping_mul(31).wrapping_add(xxh3_64(location.as_bytes()));
}

/// Numbers that do not compress (splitmix64), the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> i64 {
        (self.next() % end) as i64
    }
}

/// What the entries of a manifest are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// With statistics of every column: longs and, every third, texts.
    Stats,
    /// Deletion vectors in Puffin files.
    Vectors,
}

fn table_schema() -> Value {
    let kind = |id: usize| if id.is_multiple_of(3) { "string" } else { "long" };
    let field = |id: usize| json!({"id": id, "name": format!("c{id}"), "required": false, "type": kind(id)});
    json!({"type": "struct", "schema-id": 0, "fields": (1..=COLUMNS).map(field).collect::<Vec<_>>()})
}

/// A manifest of format 3.
fn manifest(kind: Kind, codec: &'static str, entries: usize) -> Vec<u8> {
    let empty = avro::manifest(3, &[], kind == Kind::Vectors, &[]);
    let mut file = Container::like(&empty, codec);
    assert!(file.swap("schema", &avro::table_schema(&[]).to_string(), &table_schema().to_string()));
    let (mut random, mut raw, mut rows) = (Random(7), Vec::with_capacity(2 * BLOCK), 0);
    for index in 0..entries {
        entry(&mut raw, kind, index, &mut random);
        rows += 1;
        if raw.len() >= BLOCK {
            file.block(rows, &raw);
            raw.clear();
            rows = 0;
        }
    }
    if rows > 0 {
        file.block(rows, &raw);
    }
    file.file
}

/// One entry, in the order of the fields of `avro::manifest`. Of unions, null is branch 0.
fn entry(out: &mut Vec<u8>, kind: Kind, index: usize, random: &mut Random) {
    long(out, 1); // status
    some(out, SNAPSHOT);
    out.extend([0, 0]); // sequence numbers
    long(out, i64::from(kind == Kind::Vectors)); // content
    let folder = "s3://warehouse/sales.db/orders/data";
    let number = index % 500;
    if kind == Kind::Vectors {
        let puffin = format!("{folder}/{:05}-{number}-{:016x}-deletes.puffin", index / 500, index / 10);
        bytes(out, puffin.as_bytes());
        bytes(out, b"PUFFIN");
    } else {
        let location = format!("{folder}/{:05}-{number}-{:016x}-0-00001.parquet", index / 500, random.next());
        bytes(out, location.as_bytes());
        bytes(out, b"PARQUET");
    }
    long(out, random.below(2_000_000)); // records
    long(out, random.below(512 << 20)); // size
    if kind == Kind::Stats {
        statistics(out, random);
    } else {
        out.extend([0; 6]);
    }
    out.push(0); // key metadata
    long(out, 1);
    long(out, 1);
    long(out, 4); // one split
    out.push(0);
    out.push(0); // equality ids
    some(out, 0); // sort order
    some(out, index as i64); // first row id
    if kind == Kind::Vectors {
        long(out, 1);
        bytes(out, format!("{folder}/{:05}-{number}-{:016x}-0-00001.parquet", index / 500, index).as_bytes());
        some(out, 4 + random.below(1 << 20));
        some(out, 40 + random.below(1 << 10));
    } else {
        out.extend([0; 3]);
    }
}

fn some(out: &mut Vec<u8>, value: i64) {
    long(out, 1);
    long(out, value);
}

/// Sizes, counts, nulls and bounds of every column.
fn statistics(out: &mut Vec<u8>, random: &mut Random) {
    let counts = |out: &mut Vec<u8>, random: &mut Random, end: u64| {
        long(out, 1);
        long(out, COLUMNS as i64);
        for id in 1..=COLUMNS {
            long(out, id as i64);
            long(out, random.below(end));
        }
        out.push(0);
    };
    counts(out, random, 20 << 20);
    counts(out, random, 2_000_000);
    counts(out, random, 100);
    out.push(0); // no NaNs
    for _ in 0..2 {
        long(out, 1);
        long(out, COLUMNS as i64);
        for id in 1..=COLUMNS {
            long(out, id as i64);
            if id.is_multiple_of(3) {
                // Java cuts texts at 16 characters.
                bytes(out, format!("{:016x}", random.next()).as_bytes());
            } else {
                bytes(out, &random.next().to_le_bytes());
            }
        }
        out.push(0);
    }
}

/// A manifest list, in blocks as Java writes them.
fn list(codec: &'static str) -> Vec<u8> {
    let mut file = Container::like(&avro::manifest_list(3, SNAPSHOT, None, 1, &[]), codec);
    let mut random = Random(11);
    let listed: Vec<_> = (0..LISTED)
        .map(|index| avro::Listed {
            location: format!("s3://warehouse/sales.db/orders/metadata/{:016x}-m{index}.avro", random.next()),
            length: 8_000_000 + random.next() % 100_000,
            deletes: false,
            sequence_number: index as i64,
            min_sequence_number: index as i64,
            adder: random.below(i64::MAX as u64),
            files: [random.next() % 1000, 0, 0],
            rows: [random.next() % 1_000_000, 0, 0],
        })
        .collect();
    for part in listed.chunks(400) {
        let one = avro::manifest_list(3, SNAPSHOT, None, 1, part);
        let (rows, raw) = blocks(&one)[0];
        file.block(rows, raw);
    }
    file.file
}

fn manifest_ref(file: &[u8], kind: Kind, entries: usize) -> ManifestRef {
    ManifestRef {
        location: "memory://manifest.avro".to_owned(),
        length: file.len() as u64,
        content: if kind == Kind::Vectors { ManifestContent::Deletes } else { ManifestContent::Data },
        added_snapshot: None,
        sequence_number: 1,
        counts: Some(ManifestCounts { added: entries as u64, existing: 0, deleted: 0 }),
        is_encrypted: false,
    }
}

fn ours(file: &[u8], of: &ManifestRef) -> Answer {
    let mut answer = Answer::default();
    read_manifest(file, of, |entry| add(&mut answer, entry.location, entry.size)).unwrap();
    answer
}

fn by_the_crate(file: &[u8]) -> Answer {
    let mut answer = Answer::default();
    for entry in Manifest::parse_avro(file).unwrap().entries() {
        add(&mut answer, entry.file_path(), entry.file_size_in_bytes());
    }
    answer
}

fn ours_list(file: &[u8]) -> Answer {
    let mut answer = Answer::default();
    for manifest in read_manifest_list(file, "memory://list.avro").unwrap() {
        add(&mut answer, &manifest.location, manifest.length);
    }
    answer
}

fn list_by_the_crate(file: &[u8]) -> Answer {
    let mut answer = Answer::default();
    for manifest in ManifestList::parse_with_version(file, FormatVersion::V3).unwrap().entries() {
        add(&mut answer, &manifest.manifest_path, manifest.manifest_length as u64);
    }
    answer
}

/// Only inflates the blocks, into one buffer that fits. Returns the raw bytes.
fn inflated(codec: &str, blocks: &[(usize, &[u8])], buffer: &mut [u8]) -> usize {
    match codec {
        "deflate" => {
            let mut decompressor = libdeflater::Decompressor::new();
            let inflate = |(_, stored): &(usize, &[u8])| decompressor.deflate_decompress(stored, buffer).unwrap();
            blocks.iter().map(inflate).sum()
        }
        "zstandard" => {
            let mut decompressor = zstd::bulk::Decompressor::new().unwrap();
            let inflate = |(_, stored): &(usize, &[u8])| decompressor.decompress_to_buffer(stored, buffer).unwrap();
            blocks.iter().map(inflate).sum()
        }
        _ => blocks.iter().map(|(_, stored)| stored.len()).sum(),
    }
}

/// The CPU time that `work` takes on this thread, and what it gives.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let began = now();
    let done = black_box(work());
    (now().saturating_sub(began), done)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// What one round took, in seconds an entry.
struct Round {
    ours: f64,
    inflating: f64,
    by_the_crate: f64,
}

/// Measures and prints a line; gives our entries a second. `entries` of them are in `file`, `few` in the file for the crate.
fn measure(
    name: &str,
    codec: &str,
    (file, read, entries): (&[u8], &dyn Fn() -> Answer, usize),
    (expected, few, read_few): (Answer, usize, &dyn Fn() -> Answer),
) -> f64 {
    let stored = blocks(file);
    let mut buffer = vec![0; 16 * BLOCK];
    let raw = inflated(codec, &stored, &mut buffer);
    assert_eq!(stored.iter().map(|(rows, _)| rows).sum::<usize>(), entries);
    let first = read();
    assert_eq!(first.0, entries, "{name}");
    let rounds: Vec<Round> = (0..ROUNDS)
        .map(|_| {
            let (ours, answer) = timed(read);
            assert_eq!(answer, first, "{name}");
            let (inflating, _) = timed(|| inflated(codec, black_box(&stored), &mut buffer));
            let (by_the_crate, answer) = timed(read_few);
            assert_eq!(answer, expected, "{name}: the crate reads what we read");
            Round {
                ours: ours.as_secs_f64() / entries as f64,
                inflating: inflating.as_secs_f64() / entries as f64,
                by_the_crate: by_the_crate.as_secs_f64() / few as f64,
            }
        })
        .collect();
    let of = |what: &dyn Fn(&Round) -> f64| median(rounds.iter().map(what).collect());
    let (ours, inflating, by_the_crate) =
        (of(&|round| round.ours), of(&|round| round.inflating), of(&|round| round.by_the_crate));
    let (alone, share) = if codec == "null" {
        ("–".to_owned(), "–".to_owned())
    } else {
        let share = of(&|round| round.inflating / round.ours);
        (thousands(1.0 / inflating), format!("{:.0} %", 100.0 * share))
    };
    println!(
        "| {name} | {} / {} | {} | {:.0} | {alone} | {share} | {} | {:.0} × |",
        file.len() / entries,
        raw / entries,
        thousands(1.0 / ours),
        raw as f64 / entries as f64 / ours / 1e6,
        thousands(1.0 / by_the_crate),
        of(&|round| round.by_the_crate / round.ours),
    );
    1.0 / ours
}

/// A rate, in thousands a second.
fn thousands(rate: f64) -> String {
    if rate < 100_000.0 { format!("{:.1} k", rate / 1e3) } else { format!("{:.0} k", rate / 1e3) }
}

const MANIFESTS: [(&str, Kind, &str); 5] = [
    ("20 columns, deflate", Kind::Stats, "deflate"),
    ("20 columns, zstd", Kind::Stats, "zstandard"),
    ("20 columns, not compressed", Kind::Stats, "null"),
    ("no statistics, deflate", Kind::Plain, "deflate"),
    ("deletion vectors, deflate", Kind::Vectors, "deflate"),
];

/// For readers in other languages: `-- write FOLDER`.
fn write(folder: &Path) -> Vec<PathBuf> {
    std::fs::create_dir_all(folder).unwrap();
    let write = |(name, kind, codec): &(&str, Kind, &'static str)| {
        let path = folder.join(format!("{}.avro", name.replace(", ", "-").replace(' ', "-")));
        std::fs::write(&path, manifest(*kind, codec, ENTRIES)).unwrap();
        path
    };
    MANIFESTS.iter().map(write).collect()
}

/// Lets Iceberg Java read the same manifests, and prints how much faster we were. Not zstd, for which it needs a
/// library that is not among its own.
fn beside_java(classpath: &str, ours: &[f64]) {
    let folder = tempfile::tempdir().unwrap();
    let files = MANIFESTS.iter().zip(ours).zip(write(folder.path()));
    let files: Vec<_> = files.filter(|(((_, _, codec), _), _)| *codec != "zstandard").collect();
    let mut command = Command::new("java");
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/made/JavaRead.java"));
    let output = command.args(files.iter().map(|(_, path)| path)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rates: Vec<f64> = String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(rates.len(), files.len());
    println!("\nIceberg Java's projected read of the same files, warm, median of {ROUNDS}:\n");
    println!("| file | icewarden | Iceberg Java | faster |");
    println!("|---|---|---|---|");
    for ((((name, ..), ours), _), java) in files.into_iter().zip(rates) {
        println!("| {name} | {} | {} | {:.1} × |", thousands(*ours), thousands(java), ours / java);
    }
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [write_only, folder] = &arguments[..]
        && write_only == "write"
    {
        return write(Path::new(folder)).iter().for_each(|path| println!("{}", path.display()));
    }
    assert!(arguments.is_empty(), "usage: cargo bench --bench manifests [-- write FOLDER]");
    println!("{ENTRIES} entries a manifest ({CRATE_ENTRIES} for the iceberg crate), {LISTED} manifests a list;");
    println!("one thread, CPU time, median of {ROUNDS}; rates are entries a second\n");
    println!(
        "| file | bytes per entry, stored / raw | icewarden | raw MB/s | inflating alone | of that | iceberg crate | faster |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut rates = Vec::new();
    for (name, kind, codec) in MANIFESTS {
        let (file, few) = (manifest(kind, codec, ENTRIES), manifest(kind, codec, CRATE_ENTRIES));
        let (of, of_few) = (manifest_ref(&file, kind, ENTRIES), manifest_ref(&few, kind, CRATE_ENTRIES));
        rates.push(measure(
            name,
            codec,
            (&file, &|| ours(&file, &of), ENTRIES),
            (ours(&few, &of_few), CRATE_ENTRIES, &|| by_the_crate(&few)),
        ));
    }
    for (name, codec) in [("a manifest list, deflate", "deflate"), ("a manifest list, not compressed", "null")] {
        let file = list(codec);
        measure(
            name,
            codec,
            (&file, &|| ours_list(&file), LISTED),
            (ours_list(&file), LISTED, &|| list_by_the_crate(&file)),
        );
    }
    match std::env::var("ICEWARDEN_JAVA_CORE") {
        Ok(classpath) => beside_java(&classpath, &rates),
        Err(_) => println!("\nwithout Iceberg Java: run it by tests/run --parts cargo bench --bench manifests"),
    }
}
