//! Nessie keeps branches of the whole catalog and cleans its files itself: its tables are left alone, with advice.

use std::fs;
use std::path::PathBuf;

use crate::binary::{Answer, icewarden};
use crate::parts::{Nessie, S3Server, variable};
use crate::s3_lake::Tables;

#[test]
fn a_table_of_nessie_is_skipped_with_advice_and_nothing_is_changed() {
    let server = S3Server::seaweedfs(None);
    let nessie = Nessie::serve(&server);
    server.python("make_rest_table.py", &nessie.uri, &["--plain"]);
    let read =
        || -> Tables { serde_json::from_str(&server.python("read_rows.py", &nessie.uri, &["--files"])).unwrap() };
    let (tables, objects) = (read(), server.objects());
    assert!(tables["db.t"].snapshots.values().all(|rows| rows.starts_with("12 ")), "six commits: {tables:?}");

    let folder = PathBuf::from(variable("ICEWARDEN_SCRATCH")).join("nessie");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    let (uri, endpoint, at) = (&nessie.uri, &server.endpoint, folder.display());
    let text = format!(
        r#"
[[catalog]]
name = "nessie"
type = "rest"
uri = "{uri}"
[storage."s3://lake"]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "test"
secret_access_key = "testtest"
allow_http = true
[state]
database = "sqlite://{at}/icewarden.db"
plans = "file://{at}/plans"
[expire]
grace = "0s"
floor = "0s"
[guard]
allow_floor_below_minimum = true
"#
    );
    let config = folder.join("icewarden.toml");
    fs::write(&config, text).unwrap();
    for _ in 0..2 {
        let answer = Answer::of(&mut icewarden(&config, "run expire --older-than 0s --retain-last 1 --apply --json"));
        let report = answer.table("db.t");
        assert_eq!((answer.code, &report["outcome"]), (Some(0), &"skipped".into()), "{answer}");
        assert!(report["reason"].as_str().unwrap().contains("gc.enabled"), "{answer}");
        assert!(report["advice"].as_str().unwrap().contains("Nessie"), "{answer}");
        Answer::of(&mut icewarden(&config, "run sweep --apply --json")).exits(0);
    }
    let after = read();
    assert_eq!(format!("{:?}", after["db.t"].snapshots), format!("{:?}", tables["db.t"].snapshots));
    assert_eq!(after["db.t"].metadata, tables["db.t"].metadata);
    assert_eq!(server.objects(), objects);
}
