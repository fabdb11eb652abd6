//! Deletes on two S3 servers: what is named goes, byte for byte, by requests for many, and all that is nearly the same
//! stays.

use std::collections::BTreeSet;
use std::time::Duration;

use icewarden::config::Secret;
use icewarden::model::LocationRules;
use icewarden::storage::{Deleted, Storage, StorageErrorKind};
use percent_encoding::percent_decode_str;

use crate::listing::KEPT;
use crate::parts::S3Server;

/// Names that a list of objects does not carry everywhere as they are, beside those that both servers keep.
const BARE: [&str; 4] = [" lead", "trail ", "a\u{2028}b", "]]>&lt;"];

/// Names that a client or server which decodes, encodes, trims, escapes or normalizes takes for this one.
fn near_misses(name: &str) -> Vec<String> {
    vec![
        percent_decode_str(name).decode_utf8_lossy().into_owned(),
        name.trim().to_owned(),
        format!("{name} "),
        format!("{name}+"),
        format!("{name}.crc"),
        name.replace('+', " "),
        name.replace('+', "%2B"),
        name.replace(' ', "+"),
        name.replace(' ', "%20"),
        name.replace('%', "%25"),
        name.replace('&', "&amp;").replace('<', "&lt;"),
        name.replace("&lt;", "<"),
        name.replace('?', "%3F").replace('#', "%23"),
        name.replace("e\u{301}", "é"),
        name.replace('é', "e\u{301}"),
        name.to_uppercase(),
    ]
}

fn storage(server: &S3Server) -> Storage {
    let options = [
        ("endpoint", server.endpoint.as_str()),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "testtest"),
    ];
    let options = options.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect();
    Storage::new(LocationRules::default(), [("s3://lake".to_owned(), options)].into(), 8)
}

/// Three requests' worth, with the odd names among them, and what is not there; read back from outside.
fn what_is_named_goes_and_nothing_else(server: &S3Server) {
    let names = KEPT.iter().chain(&BARE).map(|name| (*name).to_owned());
    let doomed: BTreeSet<String> = names.chain((0..2200).map(|n| format!("data/{n:04}.parquet"))).collect();
    let near: BTreeSet<String> = doomed
        .iter()
        .step_by(40)
        .chain(doomed.iter().filter(|name| !name.contains("parquet")))
        .flat_map(|name| near_misses(name))
        .filter(|name| !doomed.contains(name))
        .collect();
    let key = |name: &String| format!("wh/t/{name}");
    server.put_many(&doomed.iter().chain(&near).map(key).collect::<Vec<_>>());
    let before = server.objects();
    assert_eq!(before.len(), doomed.len() + near.len(), "the server keeps near misses apart");

    let absent = ["absent 1", "absent+2", "data"].map(str::to_owned);
    let never = ["a\\b", "a//b", "dir/", "../t2"].map(str::to_owned);
    let storage = storage(server);
    let asked = doomed.iter().chain(&absent).chain(&never);
    let locations = asked.map(|name| storage.rules().parse(&format!("s3a://lake/{}", key(name))).unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcomes = runtime.block_on(storage.delete(locations, Duration::from_mins(1)));
    assert_eq!(outcomes.len(), doomed.len() + absent.len() + never.len());
    for (location, outcome) in &outcomes {
        let name = location.key().strip_prefix("wh/t/").unwrap_or_default().to_owned();
        match outcome {
            Ok(Deleted::Deleted) => assert!(doomed.contains(&name) || absent.contains(&name), "{location}"),
            Ok(Deleted::AlreadyGone) => assert!(absent.contains(&name), "{location}"),
            Err(error) => {
                assert!(never.contains(&name) && error.kind == StorageErrorKind::Unrepresentable, "{error}");
            }
        }
    }

    let after = server.objects();
    let mut expected = before;
    expected.retain(|key, _| !doomed.contains(key.strip_prefix("wh/t/").unwrap()));
    assert_eq!(after, expected);
}

#[test]
fn on_moto_what_is_named_goes_and_nothing_else() {
    what_is_named_goes_and_nothing_else(&S3Server::serve(None));
}

#[test]
fn on_seaweedfs_what_is_named_goes_and_nothing_else() {
    what_is_named_goes_and_nothing_else(&S3Server::seaweedfs(None));
}
