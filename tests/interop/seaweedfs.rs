//! SeaweedFS: its S3 below Iceberg's own REST catalog, which lends the keys to it; and its own REST catalog with OAuth2.

use crate::binary::{Answer, icewarden};
use crate::parts::RestCatalog;
use crate::s3_lake::S3Lake;

const EXPIRE: &str = "run expire --older-than 5d --retain-last 1 --apply --json";

#[test]
fn a_lake_whose_catalog_lends_the_keys_is_cleaned_as_by_java_and_shows_no_key() {
    let lake = S3Lake::on_seaweedfs("lent");
    let endpoint = &lake.server.endpoint;
    let rest = RestCatalog::serve_with(
        &lake.folder.join("catalog.db"),
        "s3://lake/wh",
        &[
            "token=let-me-in",
            "io-impl=org.apache.iceberg.aws.s3.S3FileIO",
            "s3.path-style-access=true",
            "s3.access-key-id=test",
            "s3.secret-access-key=testtest",
            "client.region=us-east-1",
            &format!("s3.endpoint={endpoint}"),
            &format!("config.s3.endpoint={endpoint}"),
            "config.s3.access-key-id=test",
            "config.s3.secret-access-key=testtest",
            "config.client.region=us-east-1",
        ],
    );
    let (uri, plans) = (&rest.uri, format!("file://{}/plans", lake.folder.display()));
    let catalog = format!("type = \"rest\"\nuri = \"{uri}\"\ntoken = \"let-me-in\"");
    let before = lake.objects();

    // Without them nothing can be read, and nothing happens.
    let config = lake.config_with(&format!("{catalog}\nvended_credentials = false"), "", &plans);
    let refused = Answer::of(&mut ours(&config)).exits(1);
    assert_eq!(refused.table("sales.orders")["outcome"], "failed", "{refused}");
    assert_eq!(lake.objects(), before);

    let config = lake.config_with(&catalog, "", &plans);
    let answer = Answer::of(&mut ours(&config)).exits(0);
    lake.assert_expired_as_java_does(&before, &answer);
    let log = rest.log();
    assert!(log.iter().any(|line| line.contains("/tables/orders?snapshots=all 200")), "{log:?}");
    for said in [&answer, &refused] {
        for secret in ["testtest", "let-me-in"] {
            assert!(!said.to_string().contains(secret), "{secret}\n{said}");
        }
    }
    let state = std::fs::read(lake.folder.join("icewarden.db")).unwrap();
    assert!(!String::from_utf8_lossy(&state).contains("testtest"), "no key is kept");

    let again = Answer::of(&mut ours(&config)).exits(0);
    assert_eq!(again.table("sales.orders")["counts"]["commits"], 0, "{again}");
}

/// No key but those that are lent: none of the environment, no metadata service to ask.
fn ours(config: &std::path::Path) -> std::process::Command {
    let mut command = icewarden(config, EXPIRE);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
    command
}
