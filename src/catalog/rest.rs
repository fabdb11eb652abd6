//! Iceberg REST catalogs. `iceberg-catalog-rest` lists namespaces and tables; configuration, load and commit are our
//! own requests, because the crate hides what they need (docs/adr/0001-own-commit.md).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iceberg::{NamespaceIdent, TableIdent, TableRequirement, TableUpdate};
use iceberg_catalog_rest::CommitTableRequest;
use reqwest::header::{CACHE_CONTROL, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::listing::HeldLister;
use self::vended::{DELEGATION, Vended};
use super::auth::Auth;
use super::http::{self, Failure, Patience, complaint, explain, was_not_sent};
use super::metadata::{self, MetadataError};
use super::{CatalogError, CommitOutcome, Committing, LoadedTable};
use crate::clock::Clock;
use crate::config::RestConfig;
use crate::model::{TableName, TableState};
use crate::storage::{Storage, StorageErrorKind};

mod listing;
mod vended;

/// Between namespace levels where the server does not say, percent-encoded.
const DEFAULT_SEPARATOR: &str = "%1F";

/// A commit may land between the server's answer and our read of the file; two in a row are told as an error.
const LOAD_ATTEMPTS: usize = 2;

/// Ids in one `remove-snapshots`.
const IDS_AN_UPDATE: usize = 1000;

/// How servers on Iceberg up to 1.8 refuse an update with several ids, before they apply anything: as 400, or as 500 by
/// those that let the parser's error through.
const ONE_ID_ONLY: &str = "Invalid set of snapshot ids to remove. Expected one value but received";

/// A REST catalog.
#[derive(Debug, Clone)]
pub struct RestCatalog {
    name: String,
    client: Client,
    patience: Patience,
    auth: Auth,
    /// What was configured, for the crate that lists.
    uri: String,
    warehouse: Option<String>,
    lister: HeldLister,
    /// `<uri>/v1`, with the server's prefix.
    base: String,
    separator: String,
    /// Whether the server lists commits among what it offers; none where it lists nothing.
    offers_commits: Option<bool>,
    is_nessie: bool,
    storage: Storage,
    /// Whether the server is asked to lend keys to storage.
    lends: bool,
    /// Whether the server was found to take one id in a `remove-snapshots`.
    takes_one_id: Arc<AtomicBool>,
}

/// What the server says of a table.
struct Answer {
    location: String,
    state: TableState,
    vended: Vended,
}

/// What a load answers, as far as we read it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LoadAnswer<'a> {
    metadata_location: Option<String>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    storage_credentials: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CommitAnswer {
    #[serde(rename = "metadata-location")]
    _metadata_location: String,
}

/// Values are strings by the specification; servers send others, which we do not need.
#[derive(Deserialize)]
struct ConfigAnswer {
    #[serde(default)]
    overrides: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    defaults: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    endpoints: Option<Value>,
}

impl ConfigAnswer {
    fn get(&self, key: &str) -> Option<&str> {
        let sides = [&self.overrides, &self.defaults];
        sides.into_iter().flatten().find_map(|side| side.get(key)?.as_str()).filter(|value| !value.is_empty())
    }
}

impl RestCatalog {
    /// Asks the server for its configuration.
    pub async fn open(
        name: &str,
        config: &RestConfig,
        warehouse: Option<&str>,
        storage: Storage,
    ) -> Result<Self, CatalogError> {
        Self::open_within(name, config, warehouse, storage, Patience::default()).await
    }

    async fn open_within(
        name: &str,
        config: &RestConfig,
        warehouse: Option<&str>,
        storage: Storage,
        patience: Patience,
    ) -> Result<Self, CatalogError> {
        let failed = |reason: String| unavailable(name, "open", reason);
        let uri = config.uri.trim_end_matches('/');
        let client = http::client(&config.headers, config.ca.as_ref(), patience).map_err(failed)?;
        let auth = Auth::new(config, patience).map_err(failed)?;
        let lends = config.vended_credentials;
        let query: Vec<(&str, &str)> = warehouse.map(|warehouse| ("warehouse", warehouse)).into_iter().collect();
        let request = client.get(format!("{uri}/v1/config")).query(&query);
        let body = get(&auth, request, patience).await.map_err(|failure| failed(failure.reason))?;
        let config: ConfigAnswer = serde_json::from_slice(&body)
            .map_err(|error| failed(format!("{uri}/v1/config is no catalog configuration: {error}")))?;
        let server = config.overrides.as_ref().and_then(|overrides| overrides.get("uri")?.as_str()).unwrap_or(uri);
        if uri.starts_with("https://") && !server.starts_with("https://") {
            return Err(failed(format!("{uri} sends its clients on to {server}, where tokens would go unencrypted")));
        }
        // The prefix goes in as it is, as every client does; servers that need it encoded send it so.
        let prefix = config.get("prefix").map(|prefix| format!("/{}", prefix.trim_matches('/'))).unwrap_or_default();
        let base = format!("{}/v1{prefix}", server.trim_end_matches('/'));
        let separator = config.get("namespace-separator").unwrap_or(DEFAULT_SEPARATOR).to_owned();
        let (name, uri, warehouse) = (name.to_owned(), uri.to_owned(), warehouse.map(str::to_owned));
        let is_nessie = config.get("nessie.is-nessie-catalog") == Some("true");
        let (lister, takes_one_id) = (HeldLister::default(), Arc::default());
        // Other things than a list tell nothing.
        let offered = config.endpoints.as_ref().and_then(Value::as_array);
        let offers_commits =
            offered.map(|all| all.iter().any(|endpoint| endpoint.as_str().is_some_and(is_commit_endpoint)));
        Ok(Self {
            name,
            client,
            patience,
            auth,
            uri,
            warehouse,
            lister,
            base,
            separator,
            offers_commits,
            is_nessie,
            storage,
            lends,
            takes_one_id,
        })
    }

    /// As [`super::Catalog::keeps_house`]. Nessie sets `gc.enabled = false` on all of its tables.
    pub fn keeps_house(&self) -> Option<&'static str> {
        self.is_nessie.then_some("Nessie keeps branches of its own: clean its tables with Nessie's own tool, nessie-gc")
    }

    /// The name of its `[[catalog]]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the server says that it takes commits.
    pub fn committing(&self) -> Committing {
        match self.offers_commits {
            Some(true) => Committing::Offered("the server offers it"),
            Some(false) => Committing::Refused("the server does not offer commits to tables".to_owned()),
            None => Committing::Untold("the server does not tell what it offers"),
        }
    }

    /// The table with all of its snapshots; what the server says and what its file says must agree (safety rule 9).
    pub async fn load(&self, table: &TableName) -> Result<LoadedTable, CatalogError> {
        let mut differs = String::new();
        for attempt in 1..=LOAD_ATTEMPTS {
            let asked_at = Clock::system();
            let Answer { location, state: answered, vended } = self.ask(table, "all").await?;
            let storage = self.storage_of(table, &location, &answered, &vended, asked_at);
            let (metadata, state) = match metadata::read(&storage, &location).await {
                Ok(read) => read,
                // The server may have removed it since, as it fell off the log.
                Err(MetadataError::Storage(error))
                    if error.kind == StorageErrorKind::NotFound && attempt < LOAD_ATTEMPTS =>
                {
                    continue;
                }
                Err(source) => return Err(CatalogError::Metadata { table: table.clone(), source }),
            };
            match difference(&answered, &state) {
                None => {
                    let (name, state) = (table.clone(), Arc::new(state));
                    return Ok(LoadedTable { name, metadata_location: location, metadata, state, storage });
                }
                Some(what) => differs = format!("the catalog's answer and {location} differ: {what}"),
            }
        }
        Err(bad_answer(table, differs))
    }

    /// Posts the commit. Whatever does not certainly mean "not applied" is unknown.
    pub async fn commit(
        &self,
        base: &LoadedTable,
        requirements: &[TableRequirement],
        updates: &[TableUpdate],
    ) -> CommitOutcome {
        let rejected = |reason: String| CommitOutcome::Rejected { reason, left_behind: None };
        let url = match self.table_url(&base.name) {
            Ok(url) => url,
            Err(reason) => return rejected(reason),
        };
        let namespace = match NamespaceIdent::from_vec(base.name.namespace.clone()) {
            Ok(namespace) => namespace,
            Err(error) => return rejected(error.to_string()),
        };
        let takes_one_id = self.takes_one_id.load(Ordering::SeqCst);
        let request = CommitTableRequest {
            identifier: Some(TableIdent::new(namespace, base.name.name.clone())),
            requirements: requirements.to_vec(),
            updates: snapshots_by(if takes_one_id { 1 } else { IDS_AN_UPDATE }, updates),
        };
        // Nothing was sent before there is a token.
        let pass = match self.auth.pass().await {
            Ok(pass) => pass,
            Err(failure) => return rejected(failure.reason),
        };
        let request = match pass.on(self.client.post(url).json(&request)) {
            Ok(request) => request,
            Err(failure) => return rejected(failure.reason),
        };
        // Sent once: an attempt that failed may have been applied.
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) if was_not_sent(&error) => return rejected(explain(&error)),
            Err(error) => return CommitOutcome::Unknown { reason: explain(&error) },
        };
        let status = answer.status();
        let body = match answer.bytes().await {
            Ok(body) if status.is_success() => body,
            Ok(body) => self.auth.redact(&String::from_utf8_lossy(&body), &pass).into_bytes().into(),
            // A refusal is one, whatever its reason was.
            Err(error) if !status.is_success() => explain(&error).into_bytes().into(),
            Err(error) => return CommitOutcome::Unknown { reason: explain(&error) },
        };
        if status == StatusCode::UNAUTHORIZED {
            // Not for this commit, but for what comes next. If that fails, what comes next tells.
            let _next = self.auth.renewed(&pass).await;
        }
        if !status.is_success() && !takes_one_id && String::from_utf8_lossy(&body).contains(ONE_ID_ONLY) {
            self.takes_one_id.store(true, Ordering::SeqCst);
            // Not sent again from here: the table is looked at first, and planned again, as after any conflict.
            return CommitOutcome::Conflict { reason: complaint(status, &body), left_behind: None };
        }
        judge(status, &body)
    }

    /// What the server says of the table now, with `all` of its snapshots or those of `refs`.
    async fn ask(&self, table: &TableName, snapshots: &'static str) -> Result<Answer, CatalogError> {
        let url = self.table_url(table).map_err(|reason| bad_answer(table, reason))?;
        let mut request = self
            .client
            .get(url)
            .query(&[("snapshots", snapshots)])
            .header(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if self.lends {
            request = request.header(DELEGATION.0, DELEGATION.1);
        }
        let body = get(&self.auth, request, self.patience).await.map_err(|failure| match failure.status {
            Some(StatusCode::NOT_FOUND) => CatalogError::NoSuchTable { table: table.clone() },
            Some(StatusCode::FORBIDDEN) if self.lends => {
                let advice = "if it is for the keys to its files, vended_credentials = false asks for none";
                unavailable(&self.name, "load a table of", format!("{table}: {}; {advice}", failure.reason))
            }
            _ => unavailable(&self.name, "load a table of", format!("{table}: {}", failure.reason)),
        })?;
        let answer: LoadAnswer<'_> =
            serde_json::from_slice(&body).map_err(|error| bad_answer(table, format!("it is no table: {error}")))?;
        let vended = Vended::of(answer.config, answer.storage_credentials);
        let location = answer.metadata_location.ok_or_else(|| {
            let advice = "the catalog's answer has no metadata-location, without which its snapshots cannot be checked; \
                          serve the table by a catalog that keeps metadata files";
            bad_answer(table, advice.to_owned())
        })?;
        let metadata = answer.metadata.ok_or_else(|| bad_answer(table, "the answer has no metadata".to_owned()))?;
        let state = metadata::parse(metadata.get().as_bytes(), &format!("the catalog's answer for {location}"))
            .map_err(|source| CatalogError::Metadata { table: table.clone(), source })?;
        Ok(Answer { location, state, vended })
    }

    fn table_url(&self, table: &TableName) -> Result<String, String> {
        let namespace = http::namespace(&table.namespace, &self.separator)?;
        Ok(format!("{}/namespaces/{namespace}/tables/{}", self.base, http::segment(&table.name)?))
    }
}

/// Whether an entry of `endpoints` is the one for commits to a table; with or without a prefix, however its parts are
/// called.
fn is_commit_endpoint(endpoint: &str) -> bool {
    let Some((method, path)) = endpoint.split_once(' ') else { return false };
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let is_table = matches!(segments.as_slice(), [.., "namespaces", _, "tables", table] if table.starts_with('{'));
    method == "POST" && is_table
}

/// The body of the answer to a request that changes nothing.
async fn get(auth: &Auth, request: RequestBuilder, patience: Patience) -> Result<bytes::Bytes, Failure> {
    let mut attempts = auth.begin(patience).await?;
    loop {
        let again =
            request.try_clone().ok_or_else(|| Failure::before("the request cannot be sent twice".to_owned()))?;
        match http::fetch(attempts.pass.on(again)?, complaint).await {
            Ok(body) => return Ok(body),
            Err(failure) => attempts.after(failure).await?,
        }
    }
}

/// What an answer to a commit means (REST specification, "updateTable").
fn judge(status: StatusCode, body: &[u8]) -> CommitOutcome {
    let reason = complaint(status, body);
    match status {
        StatusCode::OK => match serde_json::from_slice::<CommitAnswer>(body) {
            Ok(_) => CommitOutcome::Committed,
            // Something between us and the catalog answered.
            Err(error) => CommitOutcome::Unknown { reason: format!("the answer is no table: {error}") },
        },
        StatusCode::CONFLICT => CommitOutcome::Conflict { reason, left_behind: None },
        StatusCode::TOO_MANY_REQUESTS => {
            CommitOutcome::Rejected { reason: format!("not applied: {reason}"), left_behind: None }
        }
        // A proxy gave up waiting for the request, or for the server behind it.
        StatusCode::REQUEST_TIMEOUT => CommitOutcome::Unknown { reason },
        _ if status.is_client_error() || status.is_redirection() => {
            CommitOutcome::Rejected { reason, left_behind: None }
        }
        _ => CommitOutcome::Unknown { reason },
    }
}

/// With at most so many ids in a `remove-snapshots`; all servers take many updates.
fn snapshots_by(most: usize, updates: &[TableUpdate]) -> Vec<TableUpdate> {
    let mut split = Vec::with_capacity(updates.len());
    for update in updates {
        match update {
            TableUpdate::RemoveSnapshots { snapshot_ids } => {
                let chunks = snapshot_ids.chunks(most);
                split.extend(chunks.map(|ids| TableUpdate::RemoveSnapshots { snapshot_ids: ids.to_vec() }));
            }
            other => split.push(other.clone()),
        }
    }
    split
}

/// What the server's answer and the file disagree on, if anything.
fn difference(answered: &TableState, file: &TableState) -> Option<String> {
    if answered.uuid != file.uuid {
        let show = |state: &TableState| state.uuid.map_or_else(|| "none".to_owned(), |uuid| uuid.to_string());
        return Some(format!("table-uuid {} and {}", show(answered), show(file)));
    }
    let names = answered.refs.keys().chain(file.refs.keys());
    if let Some(name) = names.into_iter().find(|name| answered.refs.get(name) != file.refs.get(name)) {
        return Some(format!("ref {name}"));
    }
    let (told, stored) = (answered.snapshot_ids(), file.snapshot_ids());
    let mut differing = told.symmetric_difference(&stored);
    let first = differing.next()?;
    Some(format!("snapshot {first} and {} others", differing.count()))
}

fn unavailable(catalog: &str, action: &'static str, reason: String) -> CatalogError {
    CatalogError::Unavailable { catalog: catalog.to_owned(), action, reason }
}

fn bad_answer(table: &TableName, reason: String) -> CatalogError {
    CatalogError::BadAnswer { table: table.clone(), reason }
}

#[cfg(test)]
mod tests;
