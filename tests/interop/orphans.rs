//! What the orphan job removes is what Spark's `remove_orphan_files` would remove, but for differences that are named here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::binary::{Answer, Paused, icewarden};
use crate::lake::Lake;
use crate::parts::{SparkOrphans, spark_orphans};
use crate::s3_lake::S3Lake;

pub(crate) const ORPHANS: &str = "run orphans --apply --json";
const DAY_MS: i64 = 86_400_000;

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Iceberg's own ages of orphans, and no grace.
pub(crate) fn config(lake: &Lake) -> PathBuf {
    with_orphans(lake, "older_than = \"3d\"\nmetadata_older_than = \"3d\"\ngrace = \"0s\"")
}

/// A configuration with these words in `[orphans]`.
pub(crate) fn with_orphans(lake: &Lake, words: &str) -> PathBuf {
    let uri = format!("sqlite://{}/catalog.db", lake.root().display());
    lake.config_with(&format!("type = \"sql\"\nuri = \"{uri}\""), &format!("[orphans]\n{words}"))
}

/// Spark's orphans of these tables, by their path in the warehouse.
fn sparks(lake: &Lake, older_than_ms: i64, tables: &[&str]) -> BTreeMap<String, SparkOrphans> {
    let warehouse = lake.root().join("warehouse");
    let mut said = spark_orphans(
        (&lake.root().join("catalog.db"), &format!("file://{}", warehouse.display())),
        older_than_ms,
        "list",
        tables,
        &[],
    );
    let relative = |file: &String| {
        let path = file.strip_prefix("file:").unwrap();
        let path = Path::new("/").join(path.trim_start_matches('/'));
        path.strip_prefix(&warehouse).unwrap().to_str().unwrap().to_owned()
    };
    for table in said.values_mut() {
        table.orphans = table.orphans.iter().map(relative).collect();
    }
    said
}

fn of_table(files: &BTreeSet<String>, table: &str) -> BTreeSet<String> {
    let folder = format!("{}/", table.replace('.', "/"));
    files.iter().filter(|file| file.starts_with(&folder)).cloned().collect()
}

#[test]
fn orphans_of_local_files_are_those_of_spark() {
    const TABLES: [&str; 7] =
        ["sales.orders", "sales.customers", "ops.events", "ops.wap", "ops.frozen", "ops.v1table", "ops.empty"];
    /// It is no JSON. Spark takes it for an old metadata file; ours keeps it, and says so.
    const DEAD: &str = "sales/orders/metadata/00999-dead.metadata.json";
    let lake = Lake::by_pyiceberg();
    let (before, rows) = (lake.all_files(), lake.rows());
    let spark = sparks(&lake, now_ms() - 3 * DAY_MS, &TABLES);
    assert!(spark["sales.orders"].orphans.contains(DEAD), "{spark:?}");
    assert_eq!(spark.values().map(|said| said.orphans.len()).sum::<usize>(), 8, "{spark:?}");

    // To look changes nothing.
    let config = config(&lake);
    let plan = Answer::of(&mut icewarden(&config, "plan orphans --json")).exits(0);
    assert_eq!(lake.all_files(), before, "{plan}");
    let answer = Answer::of(&mut icewarden(&config, ORPHANS)).exits(0);
    let gone = &before - &lake.all_files();
    for name in TABLES {
        let (said, table) = (&spark[name], answer.table(name));
        if said.refused.is_some() {
            assert_eq!((name, &table["outcome"]), ("ops.frozen", &"skipped".into()), "{answer}");
            continue;
        }
        let mut expected = said.orphans.clone();
        expected.remove(DEAD);
        assert_eq!(of_table(&gone, name), expected, "{name}\n{answer}");
        assert_eq!(table["outcome"], "done", "{name}\n{answer}");
        assert_eq!(table["counts"]["deleted_objects"], expected.len(), "{name}\n{answer}");
        let orphan = plan.table(name)["orphans"]["decisions"]["orphan"]["objects"].as_u64().unwrap_or(0);
        assert_eq!(orphan, expected.len() as u64, "{name}\n{plan}");
    }
    assert_eq!(answer.table("sales.orders")["orphans"]["decisions"]["unknown_metadata"]["objects"], 1, "{answer}");
    assert_eq!(gone.len(), 7);
    assert_eq!(lake.rows(), rows, "every row of every snapshot can be read");

    let again = Answer::of(&mut icewarden(&config, ORPHANS)).exits(0);
    for name in TABLES {
        assert_eq!(again.table(name)["counts"]["deleted_objects"], 0, "{name}\n{again}");
    }
}

#[test]
fn what_an_expiry_left_when_its_state_was_lost_is_what_spark_finds() {
    let lake = Lake::by_pyiceberg();
    let expire = "run expire --table sales.orders --older-than 5d --apply --json";
    Paused::at("after-commit", icewarden(&config(&lake), expire)).kill();
    fs::remove_dir_all(lake.state()).unwrap();
    fs::create_dir_all(lake.state()).unwrap();
    let (before, rows) = (lake.all_files(), lake.rows());
    let mut expected = sparks(&lake, now_ms() - 3 * DAY_MS, &["sales.orders"]).remove("sales.orders").unwrap().orphans;
    assert!(expected.remove("sales/orders/metadata/00999-dead.metadata.json"), "{expected:?}");
    assert!(expected.len() >= 4 + 12, "{expected:?}");

    let answer = Answer::of(&mut icewarden(&config(&lake), "run orphans --table sales.orders --apply --json")).exits(0);
    assert_eq!(&before - &lake.all_files(), expected, "{answer}");
    assert_eq!(answer.table("sales.orders")["counts"]["deleted_objects"], expected.len(), "{answer}");
    assert_eq!(lake.rows(), rows);
}

/// Names of orphans that have to be quoted, or that are told apart from others only byte by byte.
const NAMES: [&str; 16] = [
    "o.parquet",
    "a b.parquet",
    "a%20b.parquet",
    "a+b.parquet",
    "a%2Fb.parquet",
    "a%2fb.parquet",
    "100%.parquet",
    "100%25.parquet",
    "note=1%2B1%3D2/o.parquet",
    "a#1.parquet",
    "é.parquet",
    "e\u{301}.parquet",
    "日本.parquet",
    "🦀.parquet",
    "~*'()!.parquet",
    "deep/x=1/y=2/z=3/o.parquet",
];

/// Plants orphans in tables of a lake on S3; Spark and ours must find them, and nothing else.
fn orphans_on_s3_are_those_of_spark(lake: &S3Lake) {
    let live = lake.objects();
    let folder_of = |table: &str| {
        let metadata = lake.before[table].metadata.first().unwrap().strip_prefix("s3://lake/").unwrap();
        metadata[..metadata.rfind("/metadata/").unwrap()].to_owned()
    };
    let tables = ["sales.orders", "ops.odd", "ops.empty"];
    let mut planted = BTreeSet::new();
    for table in tables {
        let folder = folder_of(table);
        planted.extend(NAMES.iter().map(|name| format!("{folder}/data/{name}")));
        planted.insert(format!("{folder}/metadata/dead-m0.avro"));
    }
    // Spark leaves what is hidden; ours takes the checksum of an orphan with it.
    let orders = folder_of("sales.orders");
    let checksum = format!("{orders}/data/.o.parquet.crc");
    let kept = [
        format!("{orders}/data/_temporary/0/part-0.parquet"),
        format!("{orders}/data/.part-1.parquet"),
        format!("{orders}/data/.no-such.parquet.crc"),
        format!("{orders}-backup/data/o.parquet"),
        format!("{orders}2/data/o.parquet"),
    ];
    let all = planted.iter().chain([&checksum]).chain(&kept).cloned().collect::<Vec<_>>();
    assert!(all.iter().all(|key| !live.contains_key(key)));
    lake.server.put(&all);
    let before = lake.objects();
    assert_eq!(before.len(), live.len() + all.len(), "the server keeps all keys apart");

    // All is older than a second when Spark is done.
    let properties = [
        "io-impl=org.apache.iceberg.aws.s3.S3FileIO".to_owned(),
        format!("s3.endpoint={}", lake.server.endpoint),
        "s3.path-style-access=true".to_owned(),
        "s3.access-key-id=test".to_owned(),
        "s3.secret-access-key=testtest".to_owned(),
        "client.region=us-east-1".to_owned(),
    ];
    let at = (&*lake.folder.join("catalog.db"), "s3://lake/wh");
    let spark = spark_orphans(at, now_ms() + 5_000, "prefix", &tables, &properties);
    let found: BTreeSet<String> = spark
        .values()
        .flat_map(|said| {
            assert_eq!(said.refused, None, "{spark:?}");
            said.orphans.iter().map(|file| file.strip_prefix("s3://lake/").unwrap().to_owned())
        })
        .collect();
    // pyarrow leaves an empty object with the name of a folder where it has deleted a file. Spark would delete that, too;
    // no client of ours can name it.
    let (markers, found): (BTreeSet<_>, BTreeSet<_>) = found.into_iter().partition(|key| key.ends_with('/'));
    assert!(markers.iter().all(|key| live.contains_key(key)), "{markers:?}");
    assert_eq!(found, planted, "what Spark finds");

    let config = config_of_s3(lake, "0s");
    let arguments = format!("{ORPHANS} --table {}", tables.join(" --table "));
    let answer = Answer::of(&mut icewarden(&config, &arguments)).exits(0);
    let after = lake.objects();
    let gone: BTreeSet<String> = before.keys().filter(|key| !after.contains_key(*key)).cloned().collect();
    let expected: BTreeSet<String> = planted.iter().chain([&checksum]).cloned().collect();
    assert_eq!(gone, expected, "{answer}");
    for table in tables {
        let expected = planted.len() / tables.len() + usize::from(table == "sales.orders");
        assert_eq!(answer.table(table)["counts"]["deleted_objects"], expected, "{table}\n{answer}");
        let of_table = markers.iter().filter(|key| key.starts_with(&format!("{}/", folder_of(table)))).count();
        assert_eq!(answer.table(table)["counts"]["unrepresentable"], of_table, "{table}\n{answer}");
    }
    for (key, digest) in &after {
        assert_eq!(before.get(key), Some(digest), "{key} is as it was");
    }
    for (name, table) in lake.tables() {
        assert_eq!(table.snapshots, lake.before[&name].snapshots, "rows of {name}");
    }
}

/// Everything is old after a second; from mark to sweep there is this grace.
fn config_of_s3(lake: &S3Lake, grace: &str) -> PathBuf {
    with_all_old(&lake.config(), grace)
}

/// Adds this to a configuration.
pub(crate) fn with_all_old(config: &Path, grace: &str) -> PathBuf {
    let mut file = fs::OpenOptions::new().append(true).open(config).unwrap();
    let text = format!(
        "[orphans]\nolder_than = \"1s\"\nmetadata_older_than = \"1s\"\ngrace = \"{grace}\"\n\
         [guard]\nallow_floor_below_minimum = true\n"
    );
    file.write_all(text.as_bytes()).unwrap();
    config.to_owned()
}

#[test]
fn orphans_on_moto_are_those_of_spark_byte_for_byte() {
    orphans_on_s3_are_those_of_spark(&S3Lake::new("orphans"));
}

#[test]
fn orphans_on_seaweedfs_are_those_of_spark_byte_for_byte() {
    orphans_on_s3_are_those_of_spark(&S3Lake::on_seaweedfs("orphans-seaweedfs"));
}
