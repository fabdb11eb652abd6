//! Namespaces and tables, listed by `iceberg-catalog-rest` with our client and our token.

use std::collections::{BTreeSet, HashMap};
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use iceberg::{Catalog as _, CatalogBuilder, ErrorKind, NamespaceIdent, TableIdent};
use iceberg_catalog_rest::{RestCatalog as Lister, RestCatalogBuilder};
use percent_encoding::percent_decode_str;
use reqwest::StatusCode;
use tokio::sync::Mutex;

use super::{RestCatalog, unavailable};
use crate::catalog::auth::Pass;
use crate::catalog::http::{self, Failure, complaint};
use crate::catalog::{CatalogError, ListedTable};
use crate::model::TableName;

/// Namespaces that are listed at once.
const LISTS_AT_ONCE: usize = 8;

/// The crate's catalog and the generation of the token that it holds. It takes a token only when it is built, so a new
/// token needs a new one.
#[derive(Clone, Default)]
pub(super) struct HeldLister(Arc<Mutex<Option<Held>>>);

struct Held {
    generation: u64,
    lister: Arc<Lister>,
}

impl fmt::Debug for HeldLister {
    /// The crate's own shows the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldLister")
    }
}

/// What one namespace holds.
#[derive(Default)]
struct Visit {
    tables: Vec<TableName>,
    children: Vec<Vec<String>>,
}

impl RestCatalog {
    /// Every table of every namespace, nested ones too, sorted by name.
    pub async fn list_tables(&self) -> Result<Vec<ListedTable>, CatalogError> {
        let mut tables = BTreeSet::new();
        let mut level = self.namespaces(None).await?.unwrap_or_default();
        while !level.is_empty() {
            let visits: Vec<_> = level.iter().map(|namespace| self.visit(namespace).boxed()).collect();
            let visited: Vec<Visit> = stream::iter(visits).buffered(LISTS_AT_ONCE).try_collect().await?;
            level.clear();
            for visit in visited {
                tables.extend(visit.tables);
                level.extend(visit.children);
            }
        }
        Ok(tables.into_iter().map(|name| ListedTable { name, metadata_location: None }).collect())
    }

    async fn visit(&self, namespace: &[String]) -> Result<Visit, CatalogError> {
        // The crate puts names into paths as they are, so it gets the whole segment, encoded, as one level.
        let segment = http::namespace(namespace, &self.separator).map_err(|reason| self.cannot_list(&reason))?;
        let segment = &NamespaceIdent::new(segment);
        let found = self.listed(|lister| async move { lister.list_tables(segment).await }).await?;
        let children = self.namespaces(Some(namespace)).await?;
        let (Some(found), Some(children)) = (found, children) else {
            // Gone since it was listed? Then its parent does not list it any more. If it does, the server does not
            // know its own name for it, and the tables in it must not be taken for absent.
            let parent = namespace.split_last().map(|(_, parent)| parent).filter(|parent| !parent.is_empty());
            let siblings = self.namespaces(parent).await?.unwrap_or_default();
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
    async fn namespaces(&self, parent: Option<&[String]>) -> Result<Option<Vec<Vec<String>>>, CatalogError> {
        // The crate encodes the query itself; one level keeps it from using its own separator.
        let separator = percent_decode_str(&self.separator).decode_utf8_lossy();
        let query = &parent.map(|levels| NamespaceIdent::new(levels.join(&separator)));
        let found = self.listed(|lister| async move { lister.list_namespaces(query.as_ref()).await }).await?;
        let Some(found) = found else {
            return match parent {
                Some(_) => Ok(None),
                None => Err(self.cannot_list("HTTP 404 Not Found")),
            };
        };
        let parent = parent.unwrap_or_default();
        // A server that does not nest may answer with all of its namespaces, whoever the parent.
        let is_child = |levels: &Vec<String>| levels.len() > parent.len() && levels.starts_with(parent);
        Ok(Some(found.into_iter().map(NamespaceIdent::inner).filter(is_child).collect()))
    }

    /// What the crate lists; `None` where it is not found.
    async fn listed<T, F>(&self, list: impl Fn(Arc<Lister>) -> F) -> Result<Option<T>, CatalogError>
    where
        F: Future<Output = iceberg::Result<T>>,
    {
        let cannot = |failure: Failure| self.cannot_list(&failure.reason);
        let mut attempts = self.auth.begin(self.patience).await.map_err(cannot)?;
        loop {
            let lister = self.lister(&attempts.pass).await.map_err(cannot)?;
            match within_limit(self.patience.listing, list(lister)).await {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.kind() == ErrorKind::NamespaceNotFound => return Ok(None),
                Err(error) => attempts.after(failure(&error)).await.map_err(cannot)?,
            }
        }
    }

    /// The crate's catalog with this token.
    async fn lister(&self, pass: &Pass) -> Result<Arc<Lister>, Failure> {
        let mut held = self.lister.0.lock().await;
        if let Some(held) = held.as_ref().filter(|held| held.generation == pass.generation) {
            return Ok(Arc::clone(&held.lister));
        }
        let mut properties = HashMap::from([("uri".to_owned(), self.uri.clone())]);
        if let Some(warehouse) = &self.warehouse {
            properties.insert("warehouse".to_owned(), warehouse.clone());
        }
        if let Some(token) = pass.token() {
            properties.insert("token".to_owned(), token.reveal().to_owned());
        }
        let builder = RestCatalogBuilder::default().with_client(self.client.clone());
        let lister = Arc::new(builder.load(&self.name, properties).await.map_err(|error| failure(&error))?);
        *held = Some(Held { generation: pass.generation, lister: Arc::clone(&lister) });
        Ok(lister)
    }

    fn cannot_list(&self, reason: &str) -> CatalogError {
        unavailable(&self.name, "list tables of", reason.to_owned())
    }
}

async fn within_limit<T>(limit: Duration, listing: impl Future<Output = iceberg::Result<T>>) -> iceberg::Result<T> {
    tokio::time::timeout(limit, listing).await.unwrap_or_else(|_| {
        let seconds = limit.as_secs();
        let reason = format!("the listing did not end within {seconds} s; perhaps the server repeats a page");
        Err(iceberg::Error::new(ErrorKind::Unexpected, reason))
    })
}

/// The crate's error in our words. It tells the status of an answer only in its text, whose form a test pins, and that
/// text has all headers, or a whole configuration with the server's secrets, which are not for messages.
fn failure(error: &iceberg::Error) -> Failure {
    const STATUS: &str = "context: { status: ";
    let text = error.to_string();
    let answer = text.split_once(STATUS).filter(|(before, _)| before.len() < "Unexpected, ".len() + 1);
    let status = answer.and_then(|(_, after)| after.get(..3)).and_then(|code| code.parse::<StatusCode>().ok());
    if let (Some(status), Some((_, after))) = (status, answer) {
        let (headers, body) = after.split_once(", json: ").unwrap_or((after, ""));
        let body = body.rsplit_once(" } => ").map_or(body, |(body, _)| body);
        let retry_after = headers.split_once("\"retry-after\": \"").and_then(|(_, value)| value.split('"').next());
        return Failure::answered(status, complaint(status, body.as_bytes()), retry_after);
    }
    if let Some(source) = error.source().and_then(|source| source.downcast_ref::<reqwest::Error>()) {
        return Failure::unanswered(source);
    }
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Failure::before(format!("{}{source}", error.message()))
}
