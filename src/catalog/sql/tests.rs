use std::collections::BTreeMap;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::model::{LocationRules, RefName};

/// A lake in a folder of its own: one catalog file, one table `db.t` whose file is `00007-x.metadata.json`.
struct Lake {
    folder: TempDir,
    catalog: SqlCatalog,
}

fn storage() -> Storage {
    Storage::new(LocationRules::default(), BTreeMap::new(), 4)
}

fn table(name: &str) -> TableName {
    TableName { catalog: "lake".into(), namespace: vec!["db".into()], name: name.into() }
}

impl Lake {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog = SqlCatalog::create("lake", &uri(&folder), storage()).await.unwrap();
        let lake = Self { folder, catalog };
        let location = lake.write("00007-x.metadata.json", &lake.metadata()).await;
        lake.catalog.register(&table("t"), &location).await.unwrap();
        lake
    }

    /// The same rows as they were before views: no `iceberg_type`.
    async fn new_v0() -> Self {
        let lake = Self::new().await;
        lake.sql("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type").await;
        lake
    }

    fn location(&self) -> String {
        format!("file://{}/t", self.folder.path().display())
    }

    fn metadata(&self) -> Value {
        json!({
            "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": self.location(),
            "last-updated-ms": 5000, "last-sequence-number": 2, "properties": {}, "current-snapshot-id": 2,
            "snapshots": [{ "snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "l1" },
                          { "snapshot-id": 2, "timestamp-ms": 2, "manifest-list": "l2" }],
            "snapshot-log": [{ "snapshot-id": 1, "timestamp-ms": 1 }, { "snapshot-id": 2, "timestamp-ms": 2 }],
            "refs": { "main": { "snapshot-id": 2, "type": "branch" }, "old": { "snapshot-id": 1, "type": "tag" } },
        })
    }

    async fn write(&self, name: &str, metadata: &Value) -> String {
        let location = format!("{}/metadata/{name}", self.location());
        storage().write_new(&location, metadata.to_string().into()).await.unwrap();
        location
    }

    async fn sql(&self, statement: &'static str) {
        let mut connection = self.catalog.connect("test").await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap();
    }

    async fn point_at(&self, location: &str) {
        let mut connection = self.catalog.connect("test").await.unwrap();
        let statement = "UPDATE iceberg_tables SET metadata_location = $1 WHERE table_name = 't'";
        sqlx::query(statement).bind(location).execute(&mut connection).await.unwrap();
    }

    async fn previous(&self) -> Option<String> {
        let mut connection = self.catalog.connect("test").await.unwrap();
        let statement = "SELECT previous_metadata_location FROM iceberg_tables WHERE table_name = 't'";
        sqlx::query(statement).fetch_one(&mut connection).await.unwrap().get(0)
    }

    fn metadata_files(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("t/metadata")).unwrap().count()
    }
}

fn uri(folder: &TempDir) -> Secret {
    Secret::new(format!("sqlite://{}/catalog.db", folder.path().display()))
}

fn remove_ref(name: &str) -> [TableUpdate; 1] {
    [TableUpdate::RemoveSnapshotRef { ref_name: name.into() }]
}

fn reason(outcome: &CommitOutcome) -> &str {
    match outcome {
        CommitOutcome::Committed => "committed",
        CommitOutcome::Conflict { reason, .. }
        | CommitOutcome::Unknown { reason }
        | CommitOutcome::Rejected { reason, .. } => reason,
    }
}

async fn names(catalog: &SqlCatalog) -> Vec<String> {
    catalog.list_tables().await.unwrap().into_iter().map(|table| table.name.to_string()).collect()
}

#[tokio::test]
async fn a_commit_writes_the_next_file_and_swaps_the_pointer_in_both_layouts() {
    for lake in [Lake::new().await, Lake::new_v0().await] {
        let base = lake.catalog.load(&table("t")).await.unwrap();
        assert_eq!(base.state.refs.len(), 2);
        let requirements = [
            TableRequirement::UuidMatch { uuid: base.state.uuid.unwrap() },
            TableRequirement::RefSnapshotIdMatch { r#ref: "main".into(), snapshot_id: Some(2) },
        ];
        let outcome = lake.catalog.commit(&base, &requirements, &remove_ref("old"), Timestamp(9000)).await;
        assert_eq!(outcome, CommitOutcome::Committed);
        let after = lake.catalog.load(&table("t")).await.unwrap();
        assert_eq!(after.state.refs.keys().map(RefName::as_str).collect::<Vec<_>>(), ["main"]);
        assert_eq!(after.state.last_updated, Timestamp(9000));
        assert_eq!(after.state.metadata_log.last().unwrap().location, base.metadata_location);
        assert_eq!(lake.previous().await.as_deref(), Some(base.metadata_location.as_str()));
        let name = after.metadata_location.strip_prefix(&format!("{}/metadata/00008-", lake.location())).unwrap();
        assert!(Uuid::parse_str(name.strip_suffix(".metadata.json").unwrap()).is_ok(), "{name}");
        assert_eq!(lake.catalog.list_tables().await.unwrap()[0].metadata_location, Some(after.metadata_location));
    }
}

#[tokio::test]
async fn of_two_commits_on_one_base_exactly_one_wins_and_the_other_names_its_file() {
    let lake = Lake::new().await;
    for round in 0..8 {
        let mut metadata = lake.metadata();
        metadata["refs"]["dev"] = json!({ "snapshot-id": 2, "type": "branch" });
        lake.point_at(&lake.write(&format!("0000{round}-y.metadata.json"), &metadata).await).await;
        let base = lake.catalog.load(&table("t")).await.unwrap();
        let (updates_a, updates_b) = (remove_ref("old"), remove_ref("dev"));
        let (a, b) = tokio::join!(
            lake.catalog.commit(&base, &[], &updates_a, Timestamp(9)),
            lake.catalog.commit(&base, &[], &updates_b, Timestamp(9)),
        );
        let (winner_removed, loser) = match (&a, &b) {
            (CommitOutcome::Committed, loser) => ("old", loser),
            (loser, CommitOutcome::Committed) => ("dev", loser),
            other => panic!("{other:?}"),
        };
        let after = lake.catalog.load(&table("t")).await.unwrap();
        assert!(!after.state.refs.contains_key(&RefName::from(winner_removed)) && after.state.refs.len() == 2);
        let CommitOutcome::Conflict { left_behind: Some(left), reason } = loser else { panic!("{loser:?}") };
        assert!(*left != after.metadata_location && reason.contains(&after.metadata_location), "{reason}");
        assert!(storage().head(left).await.is_ok());
    }
}

#[tokio::test]
async fn a_table_that_moved_on_or_went_away_is_a_conflict() {
    let lake = Lake::new().await;
    let base = lake.catalog.load(&table("t")).await.unwrap();
    for (statement, reason_holds) in [
        ("UPDATE iceberg_tables SET metadata_location = 'file:/elsewhere'", "has moved on"),
        ("UPDATE iceberg_tables SET iceberg_type = 'VIEW'", "has no table db.t"),
        ("DELETE FROM iceberg_tables", "has no table db.t"),
    ] {
        lake.point_at(&base.metadata_location).await;
        lake.sql(statement).await;
        let outcome = lake.catalog.commit(&base, &[], &remove_ref("old"), Timestamp(9)).await;
        assert!(matches!(outcome, CommitOutcome::Conflict { left_behind: Some(_), .. }), "{statement}: {outcome:?}");
        assert!(reason(&outcome).contains(reason_holds), "{outcome:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_committed_is_told_before_a_file_is_written() {
    let lake = Lake::new().await;
    let base = lake.catalog.load(&table("t")).await.unwrap();
    let unmet = [TableRequirement::RefSnapshotIdMatch { r#ref: "old".into(), snapshot_id: None }];
    let outcome = lake.catalog.commit(&base, &unmet, &remove_ref("old"), Timestamp(9)).await;
    assert!(matches!(outcome, CommitOutcome::Conflict { left_behind: None, .. }), "{outcome:?}");
    for (requirements, updates, expected) in [
        (vec![TableRequirement::NotExist], remove_ref("old"), "assert-create is not supported"),
        (vec![], remove_ref("gone"), "change nothing"),
        (vec![], [TableUpdate::SetLocation { location: "file:/x".into() }], "set-location is not supported"),
    ] {
        let outcome = lake.catalog.commit(&base, &requirements, &updates, Timestamp(9)).await;
        assert!(matches!(outcome, CommitOutcome::Rejected { left_behind: None, .. }), "{outcome:?}");
        assert!(reason(&outcome).contains(expected), "{outcome:?}");
    }
    let database = lake.folder.path().join("catalog.db");
    std::fs::rename(&database, lake.folder.path().join("away.db")).unwrap();
    let outcome = lake.catalog.commit(&base, &[], &remove_ref("old"), Timestamp(9)).await;
    assert!(matches!(&outcome, CommitOutcome::Rejected { left_behind: None, .. }), "{outcome:?}");
    assert!(reason(&outcome).contains("no catalog file"), "{outcome:?}");
    assert_eq!(lake.metadata_files(), 1);
}

#[tokio::test]
async fn a_statement_that_the_database_refuses_is_rejected_with_its_file() {
    let lake = Lake::new().await;
    let base = lake.catalog.load(&table("t")).await.unwrap();
    lake.sql("CREATE TRIGGER no BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(ABORT, 'closed today'); END").await;
    let outcome = lake.catalog.commit(&base, &[], &remove_ref("old"), Timestamp(9)).await;
    let CommitOutcome::Rejected { reason, left_behind: Some(left) } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("closed today") && storage().head(&left).await.is_ok(), "{reason}");
    assert_eq!(lake.catalog.load(&table("t")).await.unwrap().metadata_location, base.metadata_location);
}

#[tokio::test]
async fn table_properties_say_where_and_how_files_are_written_and_removed() {
    let lake = Lake::new().await;
    let mut metadata = lake.metadata();
    let elsewhere = format!("file://{}/elsewhere/", lake.folder.path().display());
    metadata["properties"] = json!({
        "write.metadata.path": elsewhere, "write.metadata.compression-codec": "GZIP",
        "write.metadata.previous-versions-max": "1",
    });
    metadata["metadata-log"] = json!([{ "timestamp-ms": 1, "metadata-file": "file:/older" }]);
    lake.point_at(&lake.write("v12.metadata.json", &metadata).await).await;
    let base = lake.catalog.load(&table("t")).await.unwrap();
    let outcome = lake.catalog.commit(&base, &[], &remove_ref("old"), Timestamp(9)).await;
    assert_eq!(outcome, CommitOutcome::Committed);
    let after = lake.catalog.load(&table("t")).await.unwrap();
    assert!(after.metadata_location.starts_with(&format!("{elsewhere}00013-")), "{}", after.metadata_location);
    assert!(after.metadata_location.ends_with(".gz.metadata.json"));
    assert!(storage().read(&after.metadata_location).await.unwrap().starts_with(&[0x1f, 0x8b]));
    assert!(after.metadata.starts_with(b"{"));
}

#[test]
fn versions_are_read_from_both_forms_of_names() {
    for (name, version) in [
        ("s3://b/t/metadata/00012-9c12d441.metadata.json", Some(12)),
        ("s3://b/t-1/metadata/v7.metadata.json", Some(7)),
        ("v7.gz.metadata.json", Some(7)),
        ("123456-x.gz.metadata.json", Some(123_456)),
        ("s3://b/t/metadata/J3.metadata.json", None),
        ("metadata.json", None),
        ("-x", None),
        ("", None),
    ] {
        assert_eq!(version_of(name), version, "{name}");
    }
}

#[tokio::test]
async fn views_and_other_catalogs_are_left_out_and_names_are_sorted() {
    let lake = Lake::new().await;
    lake.sql(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) VALUES \
         ('lake', 'db', 'v', 'file:/v', 'VIEW'), ('other', 'db', 'x', 'file:/x', 'TABLE'), \
         ('lake', 'a.b', 'old_row', 'file:/o', NULL), ('lake', 'db', 'empty', NULL, 'TABLE')",
    )
    .await;
    assert_eq!(names(&lake.catalog).await, ["a.b.old_row", "db.empty", "db.t"]);
    let listed = lake.catalog.list_tables().await.unwrap();
    assert_eq!(listed[0].name.namespace, ["a", "b"]);
    assert_eq!(listed[1].metadata_location, None);
    let error = lake.catalog.load(&table("empty")).await.unwrap_err().to_string();
    assert!(error.contains("no metadata_location"), "{error}");
    for missing in ["v", "x", "nothing"] {
        let error = lake.catalog.load(&table(missing)).await.unwrap_err();
        assert!(matches!(error, CatalogError::NoSuchTable { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_name_that_no_writer_used_is_told_with_those_that_were() {
    let lake = Lake::new().await;
    let other = SqlCatalog::open("prod", &uri(&lake.folder), None, storage()).await.unwrap();
    let error = other.list_tables().await.unwrap_err().to_string();
    assert!(error.contains("holds catalogs [lake], none is called prod"), "{error}");
    // A namespace without tables is a catalog without tables.
    lake.sql("INSERT INTO iceberg_namespace_properties VALUES ('prod', 'db', 'exists', 'true')").await;
    assert!(other.list_tables().await.unwrap().is_empty());
    lake.sql("DELETE FROM iceberg_tables").await;
    assert!(lake.catalog.list_tables().await.unwrap().is_empty());
    lake.sql("DROP TABLE iceberg_namespace_properties").await;
    assert!(other.list_tables().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_no_catalog_is_never_made_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| Secret::new(format!("sqlite://{}{path}", folder.path().display()));
    std::fs::write(folder.path().join("text"), "this is no database, it is a text of some length").unwrap();
    std::fs::write(folder.path().join("empty"), "").unwrap();
    for (uri, expected) in [
        (at("/missing.db"), "there is no catalog file at"),
        (at("/missing.db?mode=rwc"), "there is no catalog file at"),
        (at(""), "is no file"),
        (at("/text"), "is not a database"),
        (at("/empty"), "is a database without Iceberg's tables"),
        (Secret::new("sqlite::memory:"), "names no file"),
        (Secret::new("sqlite://x?mode=memory"), "names no file"),
        (Secret::new("mysql://user:hunter2@host/db"), "mysql: catalogs are not supported"),
        (Secret::new("postgres://user:hunter2@host"), "`uri` names no database"),
    ] {
        let error = SqlCatalog::open("lake", &uri, None, storage()).await.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    let lake = Lake::new().await;
    assert!(SqlCatalog::create("lake", &uri(&lake.folder), storage()).await.is_err());
}

#[tokio::test]
async fn a_path_may_hold_any_character() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a b%20é")).unwrap();
    let uri = Secret::new(format!("sqlite://{}/a b%2520é/c.db", folder.path().display()));
    SqlCatalog::create("lake", &uri, storage()).await.unwrap();
    assert!(folder.path().join("a b%20é/c.db").try_exists().unwrap());
    SqlCatalog::open("lake", &uri, None, storage()).await.unwrap();
}

#[tokio::test]
async fn a_missing_metadata_file_is_named_with_its_table() {
    let lake = Lake::new().await;
    lake.point_at("file:/nowhere/00001-z.metadata.json").await;
    let error = lake.catalog.load(&table("t")).await.unwrap_err();
    assert!(matches!(error, CatalogError::Metadata { .. }));
    let text = error.to_string();
    assert!(text.contains("db.t") && text.contains("file:/nowhere/00001-z.metadata.json"), "{text}");
}
