//! Listings of real folders, and of S3 over real HTTP: what a server may answer, and what it must not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::net::TcpListener;

use super::*;
use crate::config::Secret;
use crate::model::LocationRules;

/// Small pages, many splits, no waiting.
fn hasty(page_size: usize) -> Paging {
    Paging { page_size, split_after: 1, levels: 3, pause: Duration::from_millis(1) }
}

fn storage(options: &[(&str, &str)], concurrency: usize) -> Storage {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), Secret::new(*value))).collect();
    Storage::new(LocationRules::default(), [("s3://lake".to_owned(), options)].into(), concurrency)
}

fn local() -> Storage {
    storage(&[], 4)
}

fn root(text: &str) -> Root {
    LocationRules::default().root(text).unwrap()
}

/// Everything, to the end.
async fn all(storage: &Storage, root: &Root, paging: Paging) -> Result<Vec<Listed>, StorageError> {
    let progress = Arc::new(ListProgress::default());
    let mut listing = storage.list_paged(root, &progress, paging);
    let mut found = Vec::new();
    while let Some(batch) = listing.next().await? {
        assert!(!batch.is_empty() && batch.len() <= BATCH);
        found.extend(batch);
    }
    assert!(listing.next().await.unwrap().is_none(), "the end stays the end");
    let odd = found.iter().filter(|listed| matches!(listed, Listed::Unrepresentable { .. })).count() as u64;
    let bytes: u64 = found.iter().map(|listed| listed.facts().size).sum();
    assert_eq!((progress.objects(), progress.bytes()), (found.len() as u64, bytes));
    assert_eq!(progress.unrepresentable(), odd);
    Ok(found)
}

/// Locations behind the root, sorted; each must come once.
fn names(root: &Root, found: &[Listed]) -> Vec<String> {
    let mut names: Vec<String> =
        found.iter().map(|listed| listed.location().strip_prefix(root.as_str()).unwrap().to_owned()).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "an object came twice");
    names
}

/// What cannot be asked for, and why.
fn odd<'a>(root: &Root, found: &'a [Listed]) -> BTreeMap<String, &'a str> {
    found
        .iter()
        .filter_map(|listed| match listed {
            Listed::Unrepresentable { location, why, .. } => {
                Some((location.strip_prefix(root.as_str()).unwrap().to_owned(), *why))
            }
            Listed::Object { .. } => None,
        })
        .collect()
}

fn write(folder: &Path, name: impl AsRef<OsStr>) {
    let path = folder.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "content").unwrap();
}

#[tokio::test]
async fn a_folder_tells_every_name_in_it_and_hides_none() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("t");
    let plain =
        ["a", "data/p=a%2Fb/é e\u{301} +#?&", "data/日本/🦀", " x ", "data/..x/y", "_h/.z", "data/a#1b", "data/a\\b"];
    for name in plain {
        write(&top, name);
    }
    write(&top, "data/new\nline");
    write(&top, "data/part#12");
    write(&top, OsStr::from_bytes(b"data/\xff"));
    write(&top, OsStr::from_bytes(b"\xfe/inner"));
    write(folder.path(), "t_backup/no");
    fs::create_dir_all(top.join("empty/folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap();

    let root = root(top.to_str().unwrap());
    let found = all(&local(), &root, Paging::default()).await.unwrap();
    let odd = odd(&root, &found);
    assert_eq!(
        odd.keys().collect::<Vec<_>>(),
        ["data/new\nline", "data/part#12", "data/\u{fffd}", "socket", "\u{fffd}/inner"]
    );
    assert!(odd["data/\u{fffd}"].contains("not UTF-8") && odd["socket"].contains("no regular file"), "{odd:?}");
    let mut expected: Vec<String> = plain.iter().map(|name| (*name).to_owned()).chain(odd.keys().cloned()).collect();
    expected.sort();
    assert_eq!(names(&root, &found), expected);

    // What is listed can be asked for, and is told the same.
    for listed in &found {
        let Listed::Object { location, facts } = listed else { continue };
        assert_eq!(local().head(location).await.unwrap(), *facts, "{location}");
        assert_eq!(local().read(location).await.unwrap(), "content");
    }
}

#[tokio::test]
async fn links_are_told_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "elsewhere/secret");
    write(folder.path(), "t/data/1");
    let top = folder.path().join("t");
    symlink(folder.path().join("elsewhere"), top.join("out")).unwrap();
    symlink(folder.path().join("elsewhere/secret"), top.join("out-file")).unwrap();
    symlink(top.join("data"), top.join("in")).unwrap();
    symlink("..", top.join("data/loop")).unwrap();
    symlink("nowhere", top.join("broken")).unwrap();
    let listed_at = |path: &Path| root(path.to_str().unwrap());
    let at = listed_at(&top);
    let found = all(&local(), &at, Paging::default()).await.unwrap();
    assert_eq!(names(&at, &found), ["broken", "data/1", "data/loop", "in", "out", "out-file"]);
    let odd = odd(&at, &found);
    assert_eq!(odd.keys().collect::<Vec<_>>(), ["broken", "data/loop", "in", "out", "out-file"]);
    assert!(odd.values().all(|why| why.contains("symbolic link")), "{odd:?}");

    // A link at the root itself was configured by somebody.
    symlink(&top, folder.path().join("link")).unwrap();
    let at = listed_at(&folder.path().join("link"));
    assert_eq!(names(&at, &all(&local(), &at, Paging::default()).await.unwrap()).len(), 6);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_empty_and_one_that_is_a_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "t/file");
    let at = root(folder.path().join("gone").to_str().unwrap());
    assert_eq!(all(&local(), &at, Paging::default()).await.unwrap(), []);
    let at = root(folder.path().join("t/file").to_str().unwrap());
    let error = all(&local(), &at, Paging::default()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("file://{}", folder.path().join("t/file").display())), "{error}");
    assert!(error.reason.contains("ot a directory"), "{error}");
}

#[tokio::test]
async fn a_listing_that_nobody_reads_to_its_end_holds_little_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    for at in 0..30 {
        fs::create_dir(folder.path().join(at.to_string())).unwrap();
        for file in 0..400 {
            fs::write(folder.path().join(format!("{at}/{file}")), "").unwrap();
        }
    }
    let progress = Arc::new(ListProgress::default());
    let mut listing = storage(&[], 2).list(&root(folder.path().to_str().unwrap()), &progress);
    listing.next().await.unwrap().unwrap();
    // What waits to be taken, and what two walks hold in their hands.
    while progress.objects() < 400 * (WAITING as u64 + 1) {
        tokio::task::yield_now().await;
    }
    assert!(progress.objects() <= 400 * (WAITING as u64 + 3), "{}", progress.objects());
    drop(listing);
    // The walks hold the other ends.
    while Arc::strong_count(&progress) > 1 {
        tokio::task::yield_now().await;
    }
    assert!(progress.objects() < 30 * 400);
}

/// How the server lists.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a manner of its own")]
struct Manner {
    /// In the order of a tree of folders.
    by_folder: bool,
    /// `start-after` of a folder passes over what is in it, as at `SeaweedFS`.
    skips_folder: bool,
    /// `start-after` has no effect.
    ignores_start: bool,
    /// Keys are not encoded.
    raw: bool,
    /// A plus in an encoded key stays.
    plus_stays: bool,
    /// A space in an encoded key is a plus.
    space_is_plus: bool,
    /// Empty pages between.
    empty_pages: bool,
}

/// `ListObjectsV2` over these keys, as S3 answers it.
fn list_objects(keys: &[String], manner: Manner, query: &BTreeMap<String, String>) -> String {
    let of = |name: &str| query.get(name).map_or("", String::as_str);
    let rank = |key: &str| -> Vec<u16> {
        key.bytes().map(|b| if manner.by_folder && b == b'/' { 0 } else { u16::from(b) + 1 }).collect()
    };
    let mut keys: Vec<&String> = keys.iter().filter(|key| key.starts_with(of("prefix"))).collect();
    keys.sort_by_cached_key(|key| rank(key));
    let (after, is_token) = match (of("continuation-token"), of("start-after")) {
        ("", start) if manner.ignores_start => (String::new(), start.is_empty()),
        ("", start) => (start.to_owned(), false),
        (token, _) => (token.to_owned(), true),
    };
    let was_empty_page = after.starts_with('\u{1}');
    let after = after.trim_start_matches('\u{1}').to_owned();
    let skipped = format!("{}/", after.trim_end_matches('/'));
    let skips = manner.skips_folder && !is_token && !after.is_empty();
    let mut behind: Vec<&String> =
        keys.into_iter().filter(|key| after.is_empty() || rank(key) > rank(&after)).collect();
    behind.retain(|key| !(skips && key.starts_with(&skipped)));
    let encode = |text: &str| {
        let text = percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string().replace("%2F", "/");
        let text = if manner.plus_stays { text.replace("%2B", "+") } else { text };
        if manner.space_is_plus { text.replace("%20", "+") } else { text }
    };
    let is_encoded = of("encoding-type") == "url" && !manner.raw;
    let show = |text: &str| {
        if is_encoded { encode(text) } else { text.replace('&', "&amp;").replace('<', "&lt;").replace('\n', "&#10;") }
    };
    let (mut objects, mut folders, mut last, mut count) = (Vec::new(), BTreeSet::new(), None, 0);
    let max = if manner.empty_pages && !was_empty_page { 0 } else { of("max-keys").parse().unwrap() };
    let mut is_truncated = false;
    for key in behind {
        let inner = key[of("prefix").len()..].find('/').filter(|_| of("delimiter") == "/");
        let folder = inner.map(|at| key[..=of("prefix").len() + at].to_owned());
        if folder.as_ref().is_some_and(|folder| folders.contains(folder)) {
            last = Some(key);
            continue;
        }
        if count == max {
            is_truncated = true;
            break;
        }
        (count, last) = (count + 1, Some(key));
        match folder {
            Some(folder) => _ = folders.insert(folder),
            None => {
                objects.push(format!(
                    "<Contents><Key>{}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified>\
                     <ETag>&quot;1&quot;</ETag><Size>{}</Size></Contents>",
                    show(key),
                    key.len()
                ));
            }
        }
    }
    let folder = |f: &String| format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", show(f));
    let (objects, folders) = (objects.concat(), folders.iter().map(folder).collect::<Vec<_>>().concat());
    let encoding = if is_encoded { "<EncodingType>url</EncodingType>" } else { "" };
    let mark = if manner.empty_pages && !was_empty_page { "\u{1}" } else { "" };
    let token = percent_encode(format!("{mark}{}", last.unwrap_or(&after)).as_bytes(), NON_ALPHANUMERIC).to_string();
    let end =
        if is_truncated { format!("<NextContinuationToken>{token}</NextContinuationToken>") } else { String::new() };
    format!(
        "<ListBucketResult>{encoding}<IsTruncated>{is_truncated}</IsTruncated>{end}{objects}{folders}</ListBucketResult>"
    )
}

/// What to answer to a request: its number from 0, its query.
type Answers = Arc<dyn Fn(usize, &BTreeMap<String, String>) -> Response + Send + Sync>;

/// A server on a real port that answers so; a client for it, and how often it was asked.
async fn serve(answers: Answers, concurrency: usize) -> (Storage, Arc<Mutex<usize>>) {
    let (storage, asked, _) = serve_at(answers, concurrency).await;
    (storage, asked)
}

/// The same, and where it is.
async fn serve_at(answers: Answers, concurrency: usize) -> (Storage, Arc<Mutex<usize>>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let handler = move |Query(mut query): Query<BTreeMap<String, String>>| {
        let number = {
            let mut count = count.lock().unwrap();
            *count += 1;
            *count - 1
        };
        // A token is opaque; ours is encoded, so that any key can be one.
        if let Some(token) = query.get_mut("continuation-token") {
            *token = percent_encoding::percent_decode_str(token).decode_utf8().unwrap().into_owned();
        }
        let answer = answers(number, &query);
        async move { answer }
    };
    let app = Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let keys = [("access_key_id", "test"), ("secret_access_key", "testtest"), ("region", "us-east-1")];
    let options = [&keys[..], &[("endpoint", uri.as_str()), ("allow_http", "true")]].concat();
    (storage(&options, concurrency), asked, uri)
}

fn answering(keys: Vec<String>, manner: Manner) -> Answers {
    Arc::new(move |_, query| list_objects(&keys, manner, query).into_response())
}

/// Keys that somebody's client wrote somehow.
fn odd_keys() -> Vec<String> {
    let odd = [
        "t/",
        "t//a",
        "t/a//b",
        "t/dir/",
        "t/./x",
        "t/../x",
        "t/a/../b",
        "t/new\nline",
        "t/a b",
        "t/a+b",
        "t/%20%2F%zz",
        "t/é",
        "t/e\u{301}",
        "t/🦀",
        "t/&<>\"'",
        "t/a#1",
        "t/?q=1",
        "t/ trailing ",
        "t/\u{1}x",
        "t/back\\slash",
    ];
    odd.map(str::to_owned).to_vec()
}

const T: &str = "s3://lake/t/";

/// The keys that a listing must have.
fn expected(keys: &[String]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().filter_map(|key| key.strip_prefix("t/")).map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test]
async fn odd_keys_of_s3_are_told_and_do_not_hide_their_neighbours() {
    let mut keys = odd_keys();
    keys.extend(["t_backup/x".to_owned(), "t".to_owned(), "u/x".to_owned()]);
    let plus = |plus_stays, space_is_plus| Manner { plus_stays, space_is_plus, ..Manner::default() };
    for manner in
        [Manner::default(), plus(true, false), plus(false, true), Manner { empty_pages: true, ..Manner::default() }]
    {
        for page_size in [1, 3, 1000] {
            let (storage, _) = serve(answering(keys.clone(), manner), 4).await;
            let found = all(&storage, &root(T), hasty(page_size)).await.unwrap();
            assert_eq!(names(&root(T), &found), expected(&keys), "{manner:?} {page_size}");
            let odd = odd(&root(T), &found);
            let cannot = ["", "\u{1}x", "../x", "./x", "/a", "a/../b", "a//b", "back\\slash", "dir/", "new\nline"];
            assert_eq!(odd.keys().collect::<Vec<_>>(), cannot, "{manner:?} {page_size}");
            let facts = found.iter().find(|listed| listed.location().ends_with("/a b")).unwrap().facts();
            assert_eq!((facts.size, facts.etag.as_deref()), (5, Some("\"1\"")));
            assert_eq!(facts.modified, Some("2026-11-30T12:00:00Z".parse().unwrap()));
        }
    }
}

#[tokio::test]
async fn a_large_flat_prefix_and_many_small_folders_are_listed_whole_by_many_requests_at_once() {
    let flat = (0..4000).map(|n| format!("t/data/{:05}-{n}.parquet", (n * 7919) % 4000));
    let small = (0..400).map(|n| format!("t/p={}/q={}/f", n / 20, n % 20));
    let keys: Vec<String> = flat.chain(small).collect();
    let (storage, asked) = serve(answering(keys.clone(), Manner::default()), 8).await;
    let found = all(&storage, &root(T), hasty(25)).await.unwrap();
    assert_eq!(names(&root(T), &found), expected(&keys));
    let (requests, pages) = (*asked.lock().unwrap(), keys.len() / 25);
    assert!(requests < pages * 2, "{requests} requests for {pages} pages");
}

#[test]
fn a_listing_is_what_is_there_whatever_the_pages_splits_and_manners_of_the_store() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let segment = "[a-c~ é+-]{1,2}|p=[0-9]{1,2}|d[0-9]{3}";
    let key = proptest::collection::vec(segment, 1..4).prop_map(|parts| format!("t/{}", parts.join("/")));
    let manner =
        (any::<[bool; 7]>()).prop_map(|[by_folder, skips_folder, ignores_start, raw, plus_stays, b, empty_pages]| {
            let space_is_plus = b && !plus_stays;
            Manner { by_folder, skips_folder, ignores_start, raw, plus_stays, space_is_plus, empty_pages }
        });
    let paging = (1..30_usize, 0..3_u32, 0..4_u32).prop_map(|(page_size, split_after, levels)| Paging {
        page_size,
        split_after,
        levels,
        pause: Duration::from_millis(1),
    });
    let cases = (proptest::collection::btree_set(key, 0..150), manner, paging, 1..9_usize);
    let mut runner = TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&cases, |(keys, manner, paging, concurrency)| {
        let keys: Vec<String> = keys.into_iter().collect();
        let found = runtime.block_on(async {
            let (storage, _) = serve(answering(keys.clone(), manner), concurrency).await;
            all(&storage, &root(T), paging).await
        });
        prop_assert_eq!(names(&root(T), &found.unwrap()), expected(&keys));
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn a_listing_of_a_folder_is_what_is_in_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let path = proptest::collection::vec("[a-c #%é1]{1,2}", 1..4).prop_map(|parts| parts.join("/"));
    let cases = (proptest::collection::btree_set(path, 0..60), 1..9_usize);
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&cases, |(paths, concurrency)| {
        let folder = tempfile::tempdir().unwrap();
        let mut written = Vec::new();
        for path in paths {
            // A name may be a folder already, or lie below a file.
            let at = folder.path().join(&path);
            if fs::create_dir_all(at.parent().unwrap()).is_ok() && fs::write(&at, "x").is_ok() {
                written.push(path);
            }
        }
        let at = root(folder.path().to_str().unwrap());
        let found = runtime.block_on(all(&storage(&[], concurrency), &at, Paging::default())).unwrap();
        written.sort();
        prop_assert_eq!(names(&at, &found), written);
        Ok(())
    });
    tried.unwrap();
}

fn page(keys: &[&str], end: &str) -> String {
    let objects = keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
    format!("<ListBucketResult>{}{end}</ListBucketResult>", objects.collect::<Vec<_>>().concat())
}

const END: &str = "<IsTruncated>false</IsTruncated>";

fn more(token: &str) -> String {
    format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>")
}

#[tokio::test]
async fn a_server_that_does_not_list_is_an_error_that_names_the_folder_and_never_hangs() {
    let cases: Vec<(&str, Answers)> = vec![
        ("the same continuation token", Arc::new(|_, _| page(&[], &more("x")).into_response())),
        ("which is no order", Arc::new(|n, _| page(&["t/a"], &more(&n.to_string())).into_response())),
        ("1000 pages without an object", Arc::new(|n, _| page(&[], &more(&n.to_string())).into_response())),
        ("\"t/a\" behind \"t/b\"", Arc::new(|_, _| page(&["t/b", "t/a"], END).into_response())),
        ("\"u/a\", which is elsewhere", Arc::new(|_, _| page(&["u/a"], END).into_response())),
        ("does not say where", Arc::new(|_, _| page(&["t/a"], "<IsTruncated>true</IsTruncated>").into_response())),
        ("is no whole list of objects", Arc::new(|_, _| page(&["t/a"], END)[..60].to_owned().into_response())),
        ("(asked 8 times)", Arc::new(|_, _| StatusCode::SERVICE_UNAVAILABLE.into_response())),
        (
            "InternalError: We are sorry",
            Arc::new(|_, _| "<Error><Code>InternalError</Code><Message>We are sorry</Message></Error>".into_response()),
        ),
        (
            "AccessDenied: No",
            Arc::new(|_, _| {
                (StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code><Message>No</Message></Error>").into_response()
            }),
        ),
        (
            "NoSuchBucket",
            Arc::new(|_, _| (StatusCode::NOT_FOUND, "<Error><Code>NoSuchBucket</Code></Error>").into_response()),
        ),
    ];
    for (wanted, answers) in cases {
        let (storage, asked) = serve(answers, 4).await;
        let at = root(T);
        let listed = all(&storage, &at, hasty(1000));
        let error = tokio::time::timeout(Duration::from_mins(1), listed).await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("s3://lake/t/: cannot be listed: "), "{error}");
        assert!(error.reason.contains(wanted), "{wanted}: {error}");
        let kind = match wanted {
            "AccessDenied: No" => StorageErrorKind::Denied,
            "NoSuchBucket" => StorageErrorKind::NotFound,
            _ => StorageErrorKind::Unavailable,
        };
        assert_eq!(error.kind, kind, "{error}");
        assert!(*asked.lock().unwrap() <= 1010, "{wanted}");
    }
    let closed = storage(&[("endpoint", "http://127.0.0.1:1"), ("allow_http", "true"), ("skip_signature", "true")], 4);
    let error = all(&closed, &root(T), hasty(1000)).await.unwrap_err();
    assert!(error.reason.contains("refused") && error.reason.contains("asked 8 times"), "{error}");
}

#[tokio::test]
async fn what_fails_for_a_while_is_asked_for_again() {
    let keys: Vec<String> = (0..50).map(|n| format!("t/{n:02}")).collect();
    let (storage, asked) = serve(
        Arc::new({
            let keys = keys.clone();
            move |number, query| {
                let whole = list_objects(&keys, Manner::default(), query);
                match number % 5 {
                    0 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                    1 => whole[..whole.len() / 2].to_owned().into_response(),
                    2 => "<Error><Code>SlowDown</Code></Error>".into_response(),
                    3 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                    _ => whole.into_response(),
                }
            }
        }),
        1,
    )
    .await;
    let found = all(&storage, &root(T), hasty(10)).await.unwrap();
    assert_eq!(names(&root(T), &found), expected(&keys));
    assert_eq!(*asked.lock().unwrap(), 25, "five pages, each at the fifth request");
}

#[tokio::test]
async fn a_store_that_ends_its_list_too_early_is_found_out_where_another_range_knows_better() {
    // Behind `t/a/` it has more, and says so only where it is asked for that.
    let answers: Answers = Arc::new(|_, query| {
        let of = |name: &str| query.get(name).map_or("", String::as_str);
        let text = match (of("delimiter"), of("continuation-token"), of("start-after")) {
            ("/", ..) => format!(
                "<ListBucketResult>{END}<CommonPrefixes><Prefix>t/m/</Prefix></CommonPrefixes></ListBucketResult>"
            ),
            (_, "", "") => page(&["t/a/1", "t/a/2"], &more("next")),
            (_, "next", _) => page(&["t/a/3"], END),
            (_, _, "t/m/") => page(&["t/m/1"], END),
            _ => page(&[], END),
        };
        text.into_response()
    });
    let (storage, _) = serve(answers, 4).await;
    let error = all(&storage, &root(T), hasty(2)).await.unwrap_err();
    assert!(error.reason.contains("ends the list before \"t/m/1\", which it has"), "{error}");
}

#[tokio::test]
async fn a_store_that_the_caller_brought_is_listed_too() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let storage = storage(&[], 2).with_store("s3://wh", memory);
    for key in ["t/data/1", "t/2", "t_backup/3"] {
        storage.write_new(&format!("s3://wh/{key}"), "content".into()).await.unwrap();
    }
    let at = root("s3://wh/t");
    let found = all(&storage, &at, Paging::default()).await.unwrap();
    assert_eq!(names(&at, &found), ["2", "data/1"]);
    let unknown = all(&storage, &root("ftp://x/t"), Paging::default()).await.unwrap_err();
    assert!(unknown.reason.contains("no store is known"), "{unknown}");
}

#[tokio::test]
async fn where_the_crate_lists_a_key_that_it_cannot_represent_is_an_error_and_no_gap() {
    for (key, wanted) in [("t/b", None), ("t//b", Some("t//b"))] {
        let object = |key: &str| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified><Size>1</Size></Contents>"
            )
        };
        let text = format!("<ListBucketResult>{}{}{END}</ListBucketResult>", object("t/a"), object(key));
        let (_, _, uri) = serve_at(Arc::new(move |_, _| text.clone().into_response()), 1).await;
        let account = r#"{"client_email": "a", "private_key_id": "b", "private_key": "", "disable_oauth": true}"#;
        let options = [("base_url", uri.as_str()), ("service_account_key", account)];
        let options = options.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect();
        let storage = Storage::new(LocationRules::default(), [("gs://lake".to_owned(), options)].into(), 2);
        let at = root("gs://lake/t");
        match (all(&storage, &at, Paging::default()).await, wanted) {
            (Ok(found), None) => assert_eq!(names(&at, &found), ["a", "b"]),
            (Err(error), Some(wanted)) => {
                assert!(error.to_string().starts_with("gs://lake/t/: cannot be listed: "), "{error}");
                assert!(error.reason.contains(wanted), "{error}");
            }
            (other, _) => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn of_a_tables_folders_the_outermost_are_listed() {
    let roots: BTreeSet<Root> = ["s3://b/t", "s3://b/t/data", "s3://b/t2", "s3://c/t/data"].map(root).into();
    let texts: Vec<&str> = outermost(&roots).into_iter().map(Root::as_str).collect();
    assert_eq!(texts, ["s3://b/t/", "s3://b/t2/", "s3://c/t/data/"]);
}

/// The names in a folder: its folders, its objects.
fn level(root: &Root, folder: &Folder) -> (Vec<String>, Vec<String>) {
    let name = |location: &str| location.strip_prefix(root.as_str()).unwrap().to_owned();
    let folders = folder.folders.iter().map(|folder| name(folder.as_str())).collect();
    (folders, folder.objects.iter().map(|listed| name(listed.location())).collect())
}

/// From folder to folder, everything.
async fn by_folders(storage: &Storage, top: &Root) -> Result<Vec<Listed>, StorageError> {
    let (mut found, mut waiting) = (Vec::new(), vec![top.clone()]);
    while let Some(root) = waiting.pop() {
        let folder = storage.folder(&root).await?;
        assert!(folder.folders.iter().all(|inner| inner.parent().unwrap() == root), "{folder:?}");
        found.extend(folder.objects);
        waiting.extend(folder.folders);
    }
    Ok(found)
}

#[tokio::test]
async fn one_level_of_a_local_folder_has_its_folders_and_files_and_follows_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("t");
    for name in ["a", "data/p=1/x", "data/y", "b c", "_h/.z", "new\nline/x"] {
        write(&top, name);
    }
    fs::create_dir_all(top.join("empty/inner")).unwrap();
    write(&top, OsStr::from_bytes(b"\xff/inner"));
    symlink(&top, top.join("link")).unwrap();
    let at = root(top.to_str().unwrap());
    let found = local().folder(&at).await.unwrap();
    let (folders, objects) = level(&at, &found);
    assert_eq!(folders, ["_h/", "data/", "empty/", "new\nline/"]);
    assert_eq!(objects, ["a", "b c", "link", "\u{fffd}/"]);
    let odd = odd(&at, &found.objects);
    assert_eq!(odd.keys().collect::<Vec<_>>(), ["link", "\u{fffd}/"]);
    let Listed::Object { location, facts } = &found.objects[0] else { panic!("{found:?}") };
    assert_eq!(local().head(location).await.unwrap(), *facts);

    assert_eq!(local().folder(&root(folder.path().join("gone").to_str().unwrap())).await.unwrap(), Folder::default());
    let error = local().folder(&root(top.join("a").to_str().unwrap())).await.unwrap_err();
    assert!(error.reason.contains("ot a directory"), "{error}");
}

#[tokio::test]
async fn folder_by_folder_a_bucket_has_every_key_but_those_in_folders_that_are_told() {
    let mut keys = odd_keys();
    keys.extend(["t/data/1", "t/data/p=1/2", "t/data-2/3", "t_backup/x", "t", "u/x"].map(str::to_owned));
    keys.extend((0..2500).map(|n| format!("t/data/{n:04}/x")));
    let manners = [
        Manner::default(),
        Manner { by_folder: true, ..Manner::default() },
        Manner { empty_pages: true, ..Manner::default() },
        Manner { space_is_plus: true, ..Manner::default() },
        Manner { raw: true, ..Manner::default() },
    ];
    for manner in manners {
        let keys: Vec<String> = keys.iter().filter(|key| !(manner.raw && key.contains('\u{1}'))).cloned().collect();
        let (storage, _) = serve(answering(keys.clone(), manner), 4).await;
        let at = root(T);
        let found = storage.folder(&at).await.unwrap();
        let (folders, objects) = level(&at, &found);
        assert_eq!(folders, ["a/", "data-2/", "data/", "dir/"], "{manner:?}");
        let cannot = ["../", "./", "/"];
        let direct = keys.iter().filter_map(|key| key.strip_prefix("t/").filter(|name| !name.contains('/')));
        let expected: BTreeSet<&str> = direct.chain(cannot).collect();
        assert_eq!(objects, expected.into_iter().collect::<Vec<_>>(), "{manner:?}");

        let mut names = names(&at, &by_folders(&storage, &at).await.unwrap());
        names.retain(|name| !name.ends_with('/') || name == "dir/");
        let hidden = |name: &&str| !["/a", "./x", "../x", "a/../b", "a//b"].contains(name);
        let mut wanted: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix("t/")).filter(hidden).collect();
        wanted.sort_unstable();
        assert_eq!(names, wanted, "{manner:?}");
    }
}

#[tokio::test]
async fn one_level_of_a_bucket_that_is_not_whole_is_an_error_that_names_the_folder() {
    let folder = |key: &str| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>");
    let of = |inner: String| format!("<ListBucketResult>{inner}</ListBucketResult>");
    let fixed = |text: String| -> Answers { Arc::new(move |_, _| text.clone().into_response()) };
    let cases: Vec<(&str, Answers)> = vec![
        ("the same continuation token", Arc::new(|_, _| page(&[], &more("x")).into_response())),
        ("which is no order", Arc::new(|n, _| page(&["t/a"], &more(&n.to_string())).into_response())),
        ("1000 pages without an object", Arc::new(|n, _| page(&[], &more(&n.to_string())).into_response())),
        ("\"u/a\", which is elsewhere", fixed(page(&["u/a"], END))),
        ("\"t/b/a\" beside its folder", fixed(page(&["t/b/a"], END))),
        ("\"u/\", which is elsewhere", fixed(of(folder("u/") + END))),
        ("\"t/a\" as a folder", fixed(of(folder("t/a") + END))),
        ("\"t/\" as a folder", fixed(of(folder("t/") + END))),
        ("\"t/a/b/\", which is further below", fixed(of(folder("t/a/b/") + END))),
        ("\"t/a/\" behind \"t/b/\"", fixed(of(folder("t/b/") + &folder("t/a/") + END))),
        ("does not say where", fixed(page(&["t/a"], "<IsTruncated>true</IsTruncated>"))),
        (
            "AccessDenied: No",
            Arc::new(|_, _| {
                (StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code><Message>No</Message></Error>").into_response()
            }),
        ),
    ];
    for (wanted, answers) in cases {
        let (storage, _) = serve(answers, 4).await;
        let error = storage.folder(&root(T)).await.unwrap_err();
        assert!(error.to_string().starts_with("s3://lake/t/: cannot be listed: "), "{error}");
        assert!(error.reason.contains(wanted), "{wanted}: {error}");
    }
}

#[tokio::test]
async fn one_level_of_a_store_that_the_caller_brought() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let storage = storage(&[], 2).with_store("s3://wh", memory);
    for key in ["t/data/1", "t/data/p=1/2", "t/2", "t_backup/3", "4"] {
        storage.write_new(&format!("s3://wh/{key}"), "content".into()).await.unwrap();
    }
    for (at, folders, objects) in [
        ("s3://wh/t", vec!["data/"], vec!["2"]),
        ("s3://wh/t/data", vec!["p=1/"], vec!["1"]),
        ("s3://wh", vec!["t/", "t_backup/"], vec!["4"]),
        ("s3://wh/none", vec![], vec![]),
    ] {
        let at = root(at);
        let (found_folders, found) = level(&at, &storage.folder(&at).await.unwrap());
        assert_eq!(
            (found_folders, found),
            (folders.into_iter().map(str::to_owned).collect(), objects.into_iter().map(str::to_owned).collect())
        );
    }
    assert_eq!(by_folders(&storage, &root("s3://wh")).await.unwrap().len(), 5);
}
