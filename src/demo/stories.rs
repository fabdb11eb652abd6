//! What happened to each table of the demo lake. The ages keep half a day from every limit, so that a second
//! run within hours finds nothing to do.

use iceberg::spec::FormatVersion;

use crate::model::{Age, RefName, Retention, Timestamp};

use super::DemoError;
use super::content::ContentFile;
use super::folder::TableFolder;
use super::table::{Design, Onto, Table};

const MAIN: Onto<'static> = Onto::Branch(RefName::MAIN);
/// No retention of its own.
const NONE: Retention = Retention { min_snapshots_to_keep: None, max_snapshot_age_ms: None, max_ref_age_ms: None };

/// The tables, by namespace and name.
pub(super) const TABLES: [(&str, &str); 7] = [
    ("sales", "orders"),
    ("sales", "customers"),
    ("ops", "events"),
    ("ops", "wap"),
    ("ops", "vectors"),
    ("ops", "v1"),
    ("ops", "frozen"),
];

/// Tells times before `now`.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) now: Timestamp,
}

impl When {
    fn ago(self, days: i64, hours: i64) -> Timestamp {
        self.now.minus(Age::days(days)).minus(Age::hours(hours))
    }
}

/// Makes the table `name` of [`TABLES`].
pub(super) async fn tell(name: &str, folder: TableFolder, when: When, seed: u64) -> Result<Table, DemoError> {
    let design = |format, by_day, properties| Design { format, by_day, properties, created: when.ago(60, 12), seed };
    let create = |design: Design<'_>| Table::create(folder, &design);
    match name {
        "orders" => orders(create(design(FormatVersion::V2, true, &[]))?, when).await,
        "customers" => {
            let properties =
                &[("history.expire.max-snapshot-age-ms", "864000000"), ("history.expire.min-snapshots-to-keep", "3")];
            customers(create(design(FormatVersion::V2, false, properties))?, when).await
        }
        "events" => {
            let properties = &[("write.delete.mode", "merge-on-read")];
            events(create(design(FormatVersion::V2, true, properties))?, when).await
        }
        "wap" => wap(create(design(FormatVersion::V2, false, &[("write.wap.enabled", "true")]))?, when).await,
        "vectors" => {
            let properties = &[("write.delete.mode", "merge-on-read")];
            vectors(create(design(FormatVersion::V3, false, properties))?, when).await
        }
        "v1" => v1(create(design(FormatVersion::V1, false, &[]))?, when).await,
        _ => frozen(create(design(FormatVersion::V2, false, &[("gc.enabled", "false")]))?, when).await,
    }
}

/// A busy table: loads, corrections, compaction, and branches and tags of every kind.
async fn orders(mut table: Table, when: When) -> Result<Table, DemoError> {
    for day in [60, 50, 40, 30, 20].into_iter().chain((1..=14).rev()) {
        table.load(MAIN, when.ago(day, 10), 2, 1_000).await?;
        let at = when.ago(day, 9);
        match day {
            // The day's rows were wrong.
            50 | 20 | 11 | 6 | 2 => {
                let days = partitions(&table, |_| true);
                table.rewrite(RefName::MAIN, at, "overwrite", &days[days.len() - 1..]).await?;
            }
            30 | 7 => {
                let days = partitions(&table, |files| files.len() > 1);
                table.rewrite(RefName::MAIN, at, "replace", &days).await?;
            }
            14 => {
                let oldest: Vec<_> = partitions(&table, |_| true).into_iter().take(2).flatten().collect();
                table.delete_files(RefName::MAIN, at, &oldest).await?;
            }
            _ => {}
        }
        match day {
            50 => {
                let keep =
                    Retention { min_snapshots_to_keep: Some(100), max_snapshot_age_ms: Some(Age::days(90).0), ..NONE };
                table.branch("audit", when.ago(day, 8), keep)?;
            }
            40 => table.tag("v1.0", when.ago(day, 8), NONE)?,
            30 => table.tag("eom_old", when.ago(day, 8), ref_age(10))?,
            // Closed long ago, and nobody dropped it.
            20 => table.branch("pr_4790", when.ago(day, 8), ref_age(7))?,
            9 => {
                let keep = Retention {
                    min_snapshots_to_keep: Some(2),
                    max_snapshot_age_ms: Some(Age::days(1).0),
                    ..ref_age(30)
                };
                table.branch("dev_alice", when.ago(day, 8), keep)?;
            }
            3 => table.branch("pr_4812", when.ago(day, 8), ref_age(7))?,
            _ => {}
        }
        for (branch, on, hours) in [
            ("audit", &[50, 40, 30][..], 7),
            ("pr_4790", &[20], 7),
            ("dev_alice", &[9, 8, 7, 6, 3], 7),
            ("pr_4812", &[3, 1], 6),
        ] {
            if on.contains(&day) {
                table.load(Onto::Branch(branch), when.ago(day, hours), 1, 600).await?;
            }
        }
    }
    Ok(table)
}

/// Copy on write: every load replaces all that was there. The table's own properties keep three snapshots.
async fn customers(mut table: Table, when: When) -> Result<Table, DemoError> {
    table.load(MAIN, when.ago(56, 10), 1, 6_000).await?;
    for day in [48, 40, 32, 24, 16, 8, 0] {
        let all = table.data_files(RefName::MAIN);
        table.rewrite(RefName::MAIN, when.ago(day, 10), "overwrite", &[all]).await?;
    }
    Ok(table)
}

/// Merge on read: rows are deleted by position, and compaction takes some deletes away.
async fn events(mut table: Table, when: When) -> Result<Table, DemoError> {
    for day in [28, 21, 16, 12, 9, 6, 3, 1] {
        table.load(MAIN, when.ago(day, 10), 1, 600).await?;
        let newest = table.data_files(RefName::MAIN).pop();
        match day {
            21 | 12 | 6 | 1 => table.delete_rows(when.ago(day, 9), &rows(newest.as_ref(), &[0, 2, 4])).await?,
            9 => {
                let old: Vec<_> = table.data_files(RefName::MAIN).into_iter().take(2).collect();
                table.delete_files(RefName::MAIN, when.ago(day, 9), &old).await?
            }
            _ => continue,
        };
    }
    Ok(table)
}

/// Write, audit, publish: one snapshot was published, one was forgotten, one waits.
async fn wap(mut table: Table, when: When) -> Result<Table, DemoError> {
    table.load(MAIN, when.ago(15, 10), 1, 200).await?;
    let staged = table.load(Onto::Staged { wap_id: "nightly-12" }, when.ago(12, 10), 1, 200).await?;
    table.publish(staged, "nightly-12", when.ago(12, 9)).await?;
    table.load(Onto::Staged { wap_id: "nightly-11" }, when.ago(11, 10), 1, 200).await?;
    table.load(MAIN, when.ago(3, 10), 1, 200).await?;
    table.load(Onto::Staged { wap_id: "nightly-02" }, when.ago(2, 10), 1, 200).await?;
    Ok(table)
}

/// Format 3: deletion vectors, two of them in one Puffin file of which one is replaced later.
async fn vectors(mut table: Table, when: When) -> Result<Table, DemoError> {
    table.load(MAIN, when.ago(30, 10), 2, 400).await?;
    let files = table.data_files(RefName::MAIN);
    let (first, last) = (files.first(), files.last());
    table.delete_rows(when.ago(22, 10), &rows(first, &[1, 3, 5])).await?;
    table.load(MAIN, when.ago(18, 10), 1, 200).await?;
    let both = [rows(first, &[7, 9]), rows(last, &[0, 10, 20, 30])].concat();
    table.delete_rows(when.ago(15, 10), &both).await?;
    table.delete_rows(when.ago(8, 10), &rows(first, &[11])).await?;
    table.load(MAIN, when.ago(2, 10), 1, 200).await?;
    Ok(table)
}

/// Format 1, from before sequence numbers.
async fn v1(mut table: Table, when: When) -> Result<Table, DemoError> {
    for day in [40, 30, 20, 10, 1] {
        table.load(MAIN, when.ago(day, 10), 1, 200).await?;
        if day == 20 {
            let all = table.data_files(RefName::MAIN);
            table.rewrite(RefName::MAIN, when.ago(day, 9), "replace", &[all[..2].to_vec()]).await?;
        }
    }
    Ok(table)
}

/// Nothing of it may ever go.
async fn frozen(mut table: Table, when: When) -> Result<Table, DemoError> {
    table.load(MAIN, when.ago(45, 10), 1, 200).await?;
    for day in [35, 25, 15] {
        let all = table.data_files(RefName::MAIN);
        table.rewrite(RefName::MAIN, when.ago(day, 10), "overwrite", &[all]).await?;
    }
    Ok(table)
}

/// Files that nothing refers to: (table, file, days, hours). Failed jobs leave such, old and young.
const ORPHANS: [(&str, &str, i64, i64); 7] = [
    ("orders", "data/at_day=2026-01-01/00000-0-crashed-writer.parquet", 20, 0),
    ("orders", "data/00000-1-still-being-written.parquet", 0, 6),
    ("orders", "metadata/snap-1-0-lost-commit.avro", 20, 0),
    ("orders", "metadata/00999-lost-commit.metadata.json", 40, 0),
    ("customers", "data/part with space %20+#=é.parquet", 20, 0),
    ("events", "data/00000-0-crashed-deletes.parquet", 9, 0),
    ("frozen", "data/00000-0-crashed-writer.parquet", 20, 0),
];

/// Leaves the orphans of the table `name`.
pub(super) fn leave_orphans(name: &str, table: &Table, when: When) -> Result<(), DemoError> {
    for (_, file, days, hours) in ORPHANS.into_iter().filter(|(of, ..)| *of == name) {
        table.folder().write(file, b"PAR1 not a whole file", when.ago(days, hours))?;
    }
    Ok(())
}

/// The data files of `main` by partition, oldest first; only the partitions that `wanted` says.
fn partitions(table: &Table, wanted: impl Fn(&[ContentFile]) -> bool) -> Vec<Vec<ContentFile>> {
    let files = table.data_files(RefName::MAIN);
    files.chunk_by(|left, right| left.day == right.day).filter(|files| wanted(files)).map(<[_]>::to_vec).collect()
}

fn rows<'a>(file: Option<&'a ContentFile>, positions: &'a [u32]) -> Vec<(&'a ContentFile, &'a [u32])> {
    file.map(|file| (file, positions)).into_iter().collect()
}

fn ref_age(count: i64) -> Retention {
    Retention { max_ref_age_ms: Some(Age::days(count).0), ..NONE }
}
