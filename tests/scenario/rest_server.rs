//! An in-process Iceberg REST catalog: raw JSON kept verbatim, commits as Iceberg's reference server judges
//! them, and faults. Each new metadata file is written into the bucket of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use futures::FutureExt;
use icewarden::model::{Age, LocationRules, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};

use super::faults::{Act, Faults, Place};
use super::format::On;
use super::lake::{Later, World};
use super::store::Bucket;
use super::updates::{Refused, apply, check};

/// Where a ref is set to, and with which retention.
pub(crate) struct RefTo<'a> {
    pub(crate) snapshot: &'a str,
    pub(crate) max_ref_age: Option<Age>,
}

/// The catalog and its tables.
#[derive(Debug)]
pub(crate) struct Catalog {
    tables: Mutex<BTreeMap<String, Entry>>,
    buckets: BTreeMap<String, Bucket>,
    clock: Arc<AtomicI64>,
    faults: Arc<Faults>,
    /// Told when the client is to die.
    pub(crate) crash: Notify,
    /// Commits of the client that became the table's state.
    pub(crate) applied: AtomicU64,
    /// Commits that the client has sent.
    pub(crate) posted: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    /// The table's name in the scenario's file.
    built_as: String,
    metadata_location: String,
    metadata: Value,
    later: BTreeMap<String, Later>,
    snapshots: BTreeMap<String, i64>,
}

impl Catalog {
    /// A catalog of the world's catalogued tables.
    pub(crate) fn new(
        world: &World,
        buckets: BTreeMap<String, Bucket>,
        clock: Arc<AtomicI64>,
        faults: &Arc<Faults>,
    ) -> Arc<Self> {
        let tables = world.tables.iter().filter(|table| table.catalogued).map(|table| {
            let entry = Entry {
                built_as: table.name.clone(),
                metadata_location: table.metadata_location.clone(),
                metadata: table.metadata.clone(),
                later: table.later.clone(),
                snapshots: table.snapshots.clone(),
            };
            (table.name.clone(), entry)
        });
        let this = Arc::new(Self {
            tables: Mutex::new(tables.collect()),
            buckets,
            clock,
            faults: Arc::clone(faults),
            crash: Notify::new(),
            applied: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&this);
        faults.on_commit(Box::new(move |snapshot| {
            let weak = weak.clone();
            async move {
                if let Some(this) = weak.upgrade() {
                    this.land(&snapshot).await;
                }
            }
            .boxed()
        }));
        this
    }

    /// Listens on a free port of this machine until the runtime ends.
    pub(crate) async fn serve(self: Arc<Self>) -> SocketAddr {
        let app = Router::new()
            .route("/v1/config", get(|| async { answer(StatusCode::OK, &json!({"defaults": {}, "overrides": {}})) }))
            .route("/v1/namespaces", get(namespaces))
            .route("/v1/namespaces/{namespace}", get(namespace))
            .route("/v1/namespaces/{namespace}/tables", get(tables))
            .route("/v1/namespaces/{namespace}/tables/{table}", get(load).post(commit))
            .with_state(self);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    /// The current metadata of a table.
    pub(crate) async fn metadata(&self, table: &str) -> Option<Value> {
        self.tables.lock().await.get(table).map(|entry| entry.metadata.clone())
    }

    /// The current metadata of the table that the scenario's file calls so.
    pub(crate) async fn metadata_of(&self, built_as: &str) -> Option<Value> {
        let tables = self.tables.lock().await;
        tables.values().find(|entry| entry.built_as == built_as).map(|entry| entry.metadata.clone())
    }

    /// What the scenario's file calls the table of this name.
    pub(crate) async fn built_as(&self, table: &str) -> Option<String> {
        self.tables.lock().await.get(table).map(|entry| entry.built_as.clone())
    }

    /// Gives a table another name; the two change names if that is taken.
    pub(crate) async fn rename(&self, table: &str, to: &str) -> Result<(), String> {
        rename(&mut *self.tables.lock().await, table, to)
    }

    /// Forgets a table.
    pub(crate) async fn drop_table(&self, table: &str) -> Result<(), String> {
        self.tables.lock().await.remove(table).map(drop).ok_or_else(|| format!("no table {table}"))
    }

    /// Changes a table property; without a value it is removed.
    pub(crate) async fn set(&self, table: &str, property: &str, value: Option<&str>) -> Result<(), String> {
        let mut tables = self.tables.lock().await;
        let entry = tables.get_mut(table).ok_or_else(|| format!("no table {table}"))?;
        self.swap(entry, &[set_property(property, value)]).await.map_err(|error| format!("{error:?}"))
    }

    /// Sets a ref as somebody else would, or drops it.
    pub(crate) async fn set_ref(&self, table: &str, name: &str, to: Option<RefTo<'_>>) -> Result<(), String> {
        let mut tables = self.tables.lock().await;
        let entry = tables.get_mut(table).ok_or_else(|| format!("no table {table}"))?;
        let update = match to {
            None => json!({ "action": "remove-snapshot-ref", "ref-name": name }),
            Some(to) => {
                let id = entry.snapshots.get(to.snapshot).ok_or_else(|| format!("no snapshot {}", to.snapshot))?;
                let mut reference = json!({ "type": "branch", "snapshot-id": id });
                if let Some(age) = to.max_ref_age {
                    reference["max-ref-age-ms"] = json!(age.0);
                }
                set_ref(name, reference)
            }
        };
        self.swap(entry, &[update]).await.map_err(|error| format!("{error:?}"))
    }

    /// Points a table at an older metadata file.
    pub(crate) async fn restore(&self, table: &str, metadata: &str) -> Result<(), String> {
        let parsed = LocationRules::default().parse(metadata).map_err(|error| error.to_string())?;
        let bytes = self.buckets[parsed.store()].bytes(metadata).await;
        let mut tables = self.tables.lock().await;
        let entry = tables.get_mut(table).ok_or_else(|| format!("no table {table}"))?;
        entry.metadata = serde_json::from_slice(&bytes).map_err(|error| format!("{metadata}: {error}"))?;
        metadata.clone_into(&mut entry.metadata_location);
        Ok(())
    }

    /// The names of all tables.
    pub(crate) async fn tables(&self) -> Vec<String> {
        self.tables.lock().await.keys().cloned().collect()
    }

    fn now(&self) -> i64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Applies updates, writes the new metadata file and makes it current. What changes nothing writes nothing.
    async fn swap(&self, entry: &mut Entry, updates: &[Value]) -> Result<(), Refused> {
        let mut metadata = entry.metadata.clone();
        for update in together(updates) {
            apply(&mut metadata, &update)?;
        }
        if metadata == entry.metadata {
            return Ok(());
        }
        let mut log = metadata["metadata-log"].as_array().cloned().unwrap_or_default();
        let logged = json!({
            "timestamp-ms": entry.metadata["last-updated-ms"], "metadata-file": entry.metadata_location
        });
        log.push(logged);
        let version = log.len();
        let most = metadata["properties"]["write.metadata.previous-versions-max"].as_str();
        let most = most.and_then(|text| text.parse().ok()).unwrap_or(100_usize).max(1);
        log.drain(..version.saturating_sub(most));
        metadata["metadata-log"] = json!(log);
        metadata["last-updated-ms"] = json!(self.now());
        let location = metadata["location"].as_str().unwrap_or_default().trim_end_matches('/').to_owned();
        let name = format!("{location}/metadata/{version:05}-{}.metadata.json", uuid::Uuid::new_v4());
        let bytes = Bytes::from(metadata.to_string());
        let parsed = LocationRules::default().parse(&name).map_err(|error| Refused::Bad(error.to_string()))?;
        self.buckets[parsed.store()].seed(&name, bytes, Timestamp(self.now())).await;
        entry.metadata_location = name;
        entry.metadata = metadata;
        Ok(())
    }

    /// Commits a `later` snapshot, once.
    pub(crate) async fn land(&self, snapshot: &str) {
        let mut tables = self.tables.lock().await;
        for entry in tables.values_mut() {
            let Some(later) = entry.later.remove(snapshot) else { continue };
            let mut updates = vec![json!({"action": "add-snapshot", "snapshot": later.snapshot})];
            let main = ("main".to_owned(), json!({"type": "branch", "snapshot-id": later.snapshot["snapshot-id"]}));
            let refs = if later.refs.is_empty() { vec![main] } else { later.refs };
            updates.extend(refs.into_iter().map(|(name, reference)| set_ref(&name, reference)));
            self.swap(entry, &updates).await.unwrap_or_else(|error| panic!("{snapshot} cannot land: {error:?}"));
        }
    }

    async fn commit(&self, name: &str, body: &Value) -> Response<Body> {
        self.posted.fetch_add(1, Ordering::SeqCst);
        let mut tables = self.tables.lock().await;
        let acts = self.faults.hit(On::Commit, Place::Table(name));
        for to in acts.iter().filter_map(|act| if let Act::Rename(to) = act { Some(to) } else { None }) {
            rename(&mut tables, name, to).unwrap();
        }
        let Some(entry) = tables.get_mut(name) else {
            return failure(StatusCode::NOT_FOUND, "NoSuchTableException", "Table does not exist");
        };
        for act in &acts {
            let update = match act {
                Act::CreateRef { name, snapshot } => {
                    let id = entry.snapshots.get(snapshot).copied().unwrap_or_default();
                    set_ref(name, json!({"type": "branch", "snapshot-id": id}))
                }
                Act::SetAge { name, age } => {
                    let mut reference = entry.metadata["refs"][name].clone();
                    reference["max-ref-age-ms"] = json!(age);
                    set_ref(name, reference)
                }
                Act::Set { property, value } => set_property(property, Some(value)),
                Act::Wait(time) => {
                    self.clock.fetch_add(*time, Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            self.swap(entry, &[update]).await.unwrap_or_else(|error| panic!("cannot do {act:?}: {error:?}"));
        }
        if acts.contains(&Act::Conflict) {
            return failure(StatusCode::CONFLICT, "CommitFailedException", "the table has changed");
        }
        if acts.contains(&Act::Status(500)) {
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "out of luck");
        }
        let all = |name: &str| body[name].as_array().cloned().unwrap_or_default();
        let checked = all("requirements").iter().try_for_each(|requirement| check(&entry.metadata, requirement));
        if acts.contains(&Act::Ignore) {
            return answer(
                StatusCode::OK,
                &json!({"metadata-location": entry.metadata_location, "metadata": entry.metadata}),
            );
        }
        let result = match checked {
            Ok(()) => self.swap(entry, &all("updates")).await,
            Err(refused) => Err(refused),
        };
        match result {
            Ok(()) => {}
            Err(Refused::Conflict(why)) => return failure(StatusCode::CONFLICT, "CommitFailedException", &why),
            Err(Refused::Bad(why)) => return failure(StatusCode::BAD_REQUEST, "BadRequestException", &why),
        }
        self.applied.fetch_add(1, Ordering::SeqCst);
        if acts.contains(&Act::CrashAfter) {
            self.crash.notify_one();
            drop(tables);
            return futures::future::pending().await;
        }
        if acts.contains(&Act::ApplyThen504) {
            return failure(StatusCode::GATEWAY_TIMEOUT, "ServiceFailure", "upstream timed out");
        }
        let answered = json!({"metadata-location": entry.metadata_location, "metadata": entry.metadata});
        answer(StatusCode::OK, &answered)
    }
}

/// Removals of one snapshot each, one after another, as one: the same, and not in quadratic time.
fn together(updates: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for update in updates {
        match (all.last_mut(), update["snapshot-ids"].as_array()) {
            (Some(last), Some(ids)) if last["action"] == update["action"] => {
                last["snapshot-ids"].as_array_mut().unwrap().extend(ids.iter().cloned());
            }
            _ => all.push(update.clone()),
        }
    }
    all
}

fn set_property(property: &str, value: Option<&str>) -> Value {
    match value {
        Some(value) => json!({"action": "set-properties", "updates": { property: value }}),
        None => json!({"action": "remove-properties", "removals": [property]}),
    }
}

fn rename(tables: &mut BTreeMap<String, Entry>, table: &str, to: &str) -> Result<(), String> {
    let entry = tables.remove(table).ok_or_else(|| format!("no table {table}"))?;
    if let Some(other) = tables.insert(to.to_owned(), entry) {
        tables.insert(table.to_owned(), other);
    }
    Ok(())
}

fn set_ref(name: &str, mut reference: Value) -> Value {
    reference["action"] = json!("set-snapshot-ref");
    reference["ref-name"] = json!(name);
    reference
}

fn answer(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn failure(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    answer(status, &json!({"error": {"message": message, "type": kind, "code": status.as_u16()}}))
}

/// `db.t`, from the levels of a namespace as the path has them.
fn full_name(namespace: &str, table: &str) -> String {
    format!("{}.{table}", namespace.replace('\u{1f}', "."))
}

async fn namespaces(
    State(catalog): State<Arc<Catalog>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response<Body> {
    let parent: Vec<&str> = query.get("parent").map(|p| p.split('\u{1f}').collect()).unwrap_or_default();
    let tables = catalog.tables.lock().await;
    let children: BTreeSet<Vec<&str>> = tables
        .keys()
        .filter_map(|name| {
            let levels: Vec<&str> = name.split('.').collect();
            let is_below = levels.len() > parent.len() + 1 && levels.starts_with(&parent);
            is_below.then(|| levels[..=parent.len()].to_vec())
        })
        .collect();
    answer(StatusCode::OK, &json!({"namespaces": children}))
}

async fn namespace(Path(namespace): Path<String>) -> Response<Body> {
    let levels: Vec<&str> = namespace.split('\u{1f}').collect();
    answer(StatusCode::OK, &json!({"namespace": levels, "properties": {}}))
}

async fn tables(State(catalog): State<Arc<Catalog>>, Path(namespace): Path<String>) -> Response<Body> {
    let levels: Vec<&str> = namespace.split('\u{1f}').collect();
    let prefix = full_name(&namespace, "");
    let tables = catalog.tables.lock().await;
    let identifiers: Vec<Value> = tables
        .keys()
        .filter_map(|name| name.strip_prefix(&prefix).filter(|rest| !rest.contains('.')))
        .map(|name| json!({"namespace": levels, "name": name}))
        .collect();
    answer(StatusCode::OK, &json!({"identifiers": identifiers}))
}

async fn load(
    State(catalog): State<Arc<Catalog>>,
    Path((namespace, table)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response<Body> {
    let name = full_name(&namespace, &table);
    if let Some(Act::Status(status)) = catalog.faults.hit(On::Load, Place::Table(&name)).first() {
        let status = StatusCode::from_u16(*status).unwrap();
        return failure(status, "Fault", "the table cannot be loaded");
    }
    let tables = catalog.tables.lock().await;
    let Some(entry) = tables.get(&name) else {
        return failure(StatusCode::NOT_FOUND, "NoSuchTableException", "Table does not exist");
    };
    let mut metadata = entry.metadata.clone();
    if query.get("snapshots").map(String::as_str) == Some("refs") {
        let refs = metadata["refs"].as_object().cloned().unwrap_or_default();
        if let Some(snapshots) = metadata["snapshots"].as_array_mut() {
            snapshots.retain(|one| refs.values().any(|reference| reference["snapshot-id"] == one["snapshot-id"]));
        }
    }
    let answered = json!({"metadata-location": entry.metadata_location, "metadata": metadata, "config": {}});
    answer(StatusCode::OK, &answered)
}

async fn commit(
    State(catalog): State<Arc<Catalog>>,
    Path((namespace, table)): Path<(String, String)>,
    body: Bytes,
) -> Response<Body> {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return failure(StatusCode::BAD_REQUEST, "BadRequestException", "the body is not JSON");
    };
    catalog.commit(&full_name(&namespace, &table), &body).await
}

#[cfg(test)]
mod tests {
    use super::super::format::Scenario;
    use super::*;

    const LAKE: &str = r#"
case = "x"
title = ""
now = "2026-01-31T00:00:00Z"
[[table]]
name = "a.b.t"
metadata = "J2"
metadata_log = ["J1"]
[[table.snapshot]]
id = "S1"
at = "-10d"
list = "ML1"
[[table.snapshot]]
id = "S2"
at = "-1d"
parent = "S1"
list = "ML2"
[[table.snapshot]]
id = "S3"
at = "-1h"
parent = "S2"
list = "ML3"
later = true
[[table]]
name = "a.u"
[[step]]
job = "expire"
faults = [
  { on = "commit", nth = 3, do = "apply-then-504" },
  { on = "load", table = "a.u", do = "404" },
]
"#;

    async fn ask(request: reqwest::RequestBuilder) -> (u16, Value) {
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    #[tokio::test]
    async fn the_catalog_lists_loads_and_judges_commits() {
        let scenario = Scenario::parse(LAKE).unwrap();
        let world = World::build(&scenario).unwrap();
        let clock = Arc::new(AtomicI64::new(scenario.now().unwrap().0));
        let faults = Arc::new(Faults::default());
        let bucket = Bucket::new("s3://wh", Arc::clone(&clock), Arc::clone(&faults));
        let buckets = BTreeMap::from([("s3://wh".to_owned(), bucket.clone())]);
        let catalog = Catalog::new(&world, buckets, clock, &faults);
        let base = format!("http://{}/v1/namespaces", Arc::clone(&catalog).serve().await);
        faults.arm(&scenario.steps[0].faults, &world).unwrap();
        icewarden::catalog::install_crypto();
        let http = reqwest::Client::new();

        assert_eq!(ask(http.get(&base)).await.1["namespaces"], json!([["a"]]));
        assert_eq!(ask(http.get(format!("{base}?parent=a"))).await.1["namespaces"], json!([["a", "b"]]));
        assert_eq!(
            ask(http.get(format!("{base}/a/tables"))).await.1["identifiers"],
            json!([{"namespace": ["a"], "name": "u"}])
        );
        assert_eq!(ask(http.get(format!("{base}/a/tables/u"))).await.0, 404);

        let table = format!("{base}/a%1Fb/tables/t");
        let (status, loaded) = ask(http.get(&table)).await;
        assert_eq!((status, &loaded["metadata"]["refs"]["main"]["snapshot-id"]), (200, &json!(2)));
        assert_eq!(loaded["metadata-location"], json!("s3://wh/a/b/t/metadata/J2.metadata.json"));

        let post = |main: i64| {
            let body = json!({
                "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": main}],
                "updates": [{"action": "remove-snapshots", "snapshot-ids": [1]}],
            });
            http.post(&table).header("content-type", "application/json").body(body.to_string())
        };
        assert_eq!(ask(post(1)).await.0, 409);
        let (status, committed) = ask(post(2)).await;
        assert_eq!((status, committed["metadata"]["snapshots"].as_array().unwrap().len()), (200, 1));
        let log = &committed["metadata"]["metadata-log"];
        assert_eq!(log[1]["metadata-file"], json!("s3://wh/a/b/t/metadata/J2.metadata.json"));
        let location = committed["metadata-location"].as_str().unwrap();
        assert!(location.starts_with("s3://wh/a/b/t/metadata/00002-"), "{location}");
        assert!(bucket.locations().await.contains(location));

        faults.land("S3".to_owned()).await;
        let metadata = catalog.metadata("a.b.t").await.unwrap();
        assert_eq!(metadata["current-snapshot-id"], json!(3));
        // Applied, whatever the answer says; and nothing new is written for what changes nothing.
        assert_eq!(ask(post(3)).await.0, 504);
        assert_eq!(catalog.metadata("a.b.t").await.unwrap(), metadata);
    }
}
