//! Iceberg REST catalogs. `iceberg-catalog-rest` lists namespaces and tables; configuration, load and commit are our
//! own requests, because the crate hides what they need (docs/adr/0001-own-commit.md).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use iceberg::{Catalog as _, CatalogBuilder, ErrorKind, NamespaceIdent, TableIdent, TableRequirement, TableUpdate};
use iceberg_catalog_rest::{CommitTableRequest, RestCatalog as Lister, RestCatalogBuilder};
use percent_encoding::percent_decode_str;
use reqwest::header::{CACHE_CONTROL, HeaderValue};
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::http::{Timeouts, complaint, explain, was_not_sent};
use super::metadata::{self, MetadataError};
use super::{CatalogError, CommitOutcome, ListedTable, LoadedTable};
use crate::config::Secret;
use crate::model::{TableName, TableState};
use crate::storage::{Storage, StorageErrorKind};

mod http;

/// Between namespace levels where the server does not say, percent-encoded.
const DEFAULT_SEPARATOR: &str = "%1F";

/// Namespaces that are listed at once.
const LISTS_AT_ONCE: usize = 8;

/// All pages of one namespace. Some servers repeat a page for ever.
const LIST_TIMEOUT: Duration = Duration::from_mins(10);

/// A commit may land between the server's answer and our read of the file; two in a row are told as an error.
const LOAD_ATTEMPTS: usize = 2;

/// A REST catalog over plain HTTP.
#[derive(Debug, Clone)]
pub struct RestCatalog {
    name: String,
    client: Client,
    /// What was configured, for the crate that lists.
    uri: String,
    warehouse: Option<String>,
    token: Option<Secret>,
    /// `<uri>/v1`, with the server's prefix.
    base: String,
    separator: String,
    storage: Storage,
}

/// What a load answers, as far as we read it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LoadAnswer<'a> {
    metadata_location: Option<String>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
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
}

impl ConfigAnswer {
    fn get(&self, key: &str) -> Option<&str> {
        let sides = [&self.overrides, &self.defaults];
        sides.into_iter().flatten().find_map(|side| side.get(key)?.as_str()).filter(|value| !value.is_empty())
    }
}

impl RestCatalog {
    /// Asks the server at `uri` (the base, without `/v1`) for its configuration.
    pub async fn open(
        name: &str,
        uri: &str,
        token: Option<Secret>,
        warehouse: Option<&str>,
        storage: Storage,
    ) -> Result<Self, CatalogError> {
        Self::open_within(name, uri, token, warehouse, storage, Timeouts::default()).await
    }

    async fn open_within(
        name: &str,
        uri: &str,
        token: Option<Secret>,
        warehouse: Option<&str>,
        storage: Storage,
        timeouts: Timeouts,
    ) -> Result<Self, CatalogError> {
        let failed = |reason: String| unavailable(name, "open", reason);
        let uri = uri.trim_end_matches('/');
        if !uri.starts_with("http://") {
            return Err(failed(format!("{uri}: only http:// is supported")));
        }
        let client = http::client(token.as_ref(), timeouts).map_err(failed)?;
        let query: Vec<(&str, &str)> = warehouse.map(|warehouse| ("warehouse", warehouse)).into_iter().collect();
        let body = get(client.get(format!("{uri}/v1/config")).query(&query)).await.map_err(|(_, said)| failed(said))?;
        let config: ConfigAnswer = serde_json::from_slice(&body)
            .map_err(|error| failed(format!("{uri}/v1/config is no catalog configuration: {error}")))?;
        let server = config.overrides.as_ref().and_then(|overrides| overrides.get("uri")?.as_str()).unwrap_or(uri);
        // The prefix goes in as it is, as every client does; servers that need it encoded send it so.
        let prefix = config.get("prefix").map(|prefix| format!("/{}", prefix.trim_matches('/'))).unwrap_or_default();
        let base = format!("{}/v1{prefix}", server.trim_end_matches('/'));
        let separator = config.get("namespace-separator").unwrap_or(DEFAULT_SEPARATOR).to_owned();
        let (name, uri, warehouse) = (name.to_owned(), uri.to_owned(), warehouse.map(str::to_owned));
        Ok(Self { name, client, uri, warehouse, token, base, separator, storage })
    }

    /// The name of its `[[catalog]]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every table of every namespace, nested ones too, sorted by name.
    pub async fn list_tables(&self) -> Result<Vec<ListedTable>, CatalogError> {
        let lister = self.lister().await?;
        let mut tables = BTreeSet::new();
        let mut level = self.namespaces(&lister, None).await?.unwrap_or_default();
        while !level.is_empty() {
            let visits: Vec<_> = level.iter().map(|namespace| self.visit(&lister, namespace).boxed()).collect();
            let visited: Vec<Visit> = stream::iter(visits).buffered(LISTS_AT_ONCE).try_collect().await?;
            level.clear();
            for visit in visited {
                tables.extend(visit.tables);
                level.extend(visit.children);
            }
        }
        Ok(tables.into_iter().map(|name| ListedTable { name, metadata_location: None }).collect())
    }

    /// The table with all of its snapshots; what the server says and what its file says must agree (safety rule 9).
    pub async fn load(&self, table: &TableName) -> Result<LoadedTable, CatalogError> {
        let mut differs = String::new();
        for attempt in 1..=LOAD_ATTEMPTS {
            let (location, answered) = self.ask(table).await?;
            let (metadata, state) = match metadata::read(&self.storage, &location).await {
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
                    let state = Arc::new(state);
                    return Ok(LoadedTable { name: table.clone(), metadata_location: location, metadata, state });
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
        let request = CommitTableRequest {
            identifier: Some(TableIdent::new(namespace, base.name.name.clone())),
            requirements: requirements.to_vec(),
            updates: one_snapshot_each(updates),
        };
        let answer = match self.client.post(url).json(&request).send().await {
            Ok(answer) => answer,
            Err(error) if was_not_sent(&error) => return rejected(explain(&error)),
            Err(error) => return CommitOutcome::Unknown { reason: explain(&error) },
        };
        let status = answer.status();
        let body = match answer.bytes().await {
            Ok(body) => body,
            // A refusal is one, whatever its reason was.
            Err(error) if !status.is_success() => explain(&error).into_bytes().into(),
            Err(error) => return CommitOutcome::Unknown { reason: explain(&error) },
        };
        judge(status, &body)
    }

    /// What the server says of the table now, and where its file is.
    async fn ask(&self, table: &TableName) -> Result<(String, TableState), CatalogError> {
        let url = self.table_url(table).map_err(|reason| bad_answer(table, reason))?;
        let request = self
            .client
            .get(url)
            .query(&[("snapshots", "all")])
            .header(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let body = get(request).await.map_err(|(status, said)| match status {
            Some(StatusCode::NOT_FOUND) => CatalogError::NoSuchTable { table: table.clone() },
            _ => unavailable(&self.name, "load a table of", format!("{table}: {said}")),
        })?;
        let answer: LoadAnswer<'_> =
            serde_json::from_slice(&body).map_err(|error| bad_answer(table, format!("it is no table: {error}")))?;
        let location = answer.metadata_location.ok_or_else(|| {
            let advice = "the catalog's answer has no metadata-location, without which its snapshots cannot be checked; \
                          serve the table by a catalog that keeps metadata files";
            bad_answer(table, advice.to_owned())
        })?;
        let metadata = answer.metadata.ok_or_else(|| bad_answer(table, "the answer has no metadata".to_owned()))?;
        let state = metadata::parse(metadata.get().as_bytes(), &format!("the catalog's answer for {location}"))
            .map_err(|source| CatalogError::Metadata { table: table.clone(), source })?;
        Ok((location, state))
    }

    fn table_url(&self, table: &TableName) -> Result<String, String> {
        let namespace = http::namespace(&table.namespace, &self.separator)?;
        Ok(format!("{}/namespaces/{namespace}/tables/{}", self.base, http::segment(&table.name)?))
    }

    /// Made for each listing, so that it never holds an old token.
    async fn lister(&self) -> Result<Lister, CatalogError> {
        let mut properties = HashMap::from([("uri".to_owned(), self.uri.clone())]);
        if let Some(warehouse) = &self.warehouse {
            properties.insert("warehouse".to_owned(), warehouse.clone());
        }
        if let Some(token) = &self.token {
            properties.insert("token".to_owned(), token.reveal().to_owned());
        }
        let builder = RestCatalogBuilder::default().with_client(self.client.clone());
        builder.load(&self.name, properties).await.map_err(|error| self.cannot_list(&error.to_string()))
    }

    async fn visit(&self, lister: &Lister, namespace: &[String]) -> Result<Visit, CatalogError> {
        // The crate puts names into paths as they are, so it gets the whole segment, encoded, as one level.
        let segment = http::namespace(namespace, &self.separator).map_err(|reason| self.cannot_list(&reason))?;
        let found = match within_limit(lister.list_tables(&NamespaceIdent::new(segment))).await {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NamespaceNotFound => None,
            Err(error) => return Err(self.cannot_list(&error.to_string())),
        };
        let children = self.namespaces(lister, Some(namespace)).await?;
        let (Some(found), Some(children)) = (found, children) else {
            // Gone since it was listed? Then its parent does not list it any more. If it does, the server does not
            // know its own name for it, and the tables in it must not be taken for absent.
            let parent = namespace.split_last().map(|(_, parent)| parent).filter(|parent| !parent.is_empty());
            let siblings = self.namespaces(lister, parent).await?.unwrap_or_default();
            if siblings.iter().any(|sibling| sibling == namespace) {
                let name = namespace.join(".");
                return Err(self.cannot_list(&format!("namespace {name} is listed, but asking for it answers 404")));
            }
            return Ok(Visit::default());
        };
        let name = |ident: TableIdent| TableName {
            catalog: self.name.clone(),
            namespace: namespace.to_vec(),
            name: ident.name,
        };
        Ok(Visit { tables: found.into_iter().map(name).collect(), children })
    }

    /// The namespaces directly under `parent`; `None` if there is no such parent.
    async fn namespaces(
        &self,
        lister: &Lister,
        parent: Option<&[String]>,
    ) -> Result<Option<Vec<Vec<String>>>, CatalogError> {
        // The crate encodes the query itself; one level keeps it from using its own separator.
        let separator = percent_decode_str(&self.separator).decode_utf8_lossy();
        let query = parent.map(|levels| NamespaceIdent::new(levels.join(&separator)));
        match within_limit(lister.list_namespaces(query.as_ref())).await {
            Ok(found) => {
                let parent = parent.unwrap_or_default();
                // A server that does not nest may answer with all of its namespaces, whoever the parent.
                let is_child = |levels: &Vec<String>| levels.len() > parent.len() && levels.starts_with(parent);
                Ok(Some(found.into_iter().map(NamespaceIdent::inner).filter(is_child).collect()))
            }
            Err(error) if parent.is_some() && error.kind() == ErrorKind::NamespaceNotFound => Ok(None),
            Err(error) => Err(self.cannot_list(&error.to_string())),
        }
    }

    fn cannot_list(&self, reason: &str) -> CatalogError {
        unavailable(&self.name, "list tables of", reason.to_owned())
    }
}

/// What one namespace holds.
#[derive(Default)]
struct Visit {
    tables: Vec<TableName>,
    children: Vec<Vec<String>>,
}

async fn within_limit<T>(listing: impl Future<Output = iceberg::Result<T>>) -> iceberg::Result<T> {
    tokio::time::timeout(LIST_TIMEOUT, listing).await.unwrap_or_else(|_| {
        let seconds = LIST_TIMEOUT.as_secs();
        Err(iceberg::Error::new(ErrorKind::Unexpected, format!("the listing did not end within {seconds} s")))
    })
}

/// The body of a successful answer, or the status, if there was one, and what was said.
async fn get(request: reqwest::RequestBuilder) -> Result<bytes::Bytes, (Option<StatusCode>, String)> {
    let answer = request.send().await.map_err(|error| (None, explain(&error)))?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(|error| (None, explain(&error)))?;
    if status == StatusCode::OK { Ok(body) } else { Err((Some(status), complaint(status, &body))) }
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

/// Servers on Iceberg up to 1.8 take one id in a `remove-snapshots`; all of them take many updates.
fn one_snapshot_each(updates: &[TableUpdate]) -> Vec<TableUpdate> {
    let mut split = Vec::with_capacity(updates.len());
    for update in updates {
        match update {
            TableUpdate::RemoveSnapshots { snapshot_ids } => {
                split.extend(snapshot_ids.iter().map(|id| TableUpdate::RemoveSnapshots { snapshot_ids: vec![*id] }));
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
