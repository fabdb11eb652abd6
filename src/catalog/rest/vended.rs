//! Keys to storage that the catalog lends with a table, by the names that Iceberg gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::RestCatalog;
use crate::config::Secret;
use crate::model::roots::roots_of;
use crate::model::{LocationRules, TableName, TableState, Timestamp};
use crate::storage::{Grant, Keys, Lender, Lent, Storage};

/// Asks the server to lend keys.
pub(super) const DELEGATION: (&str, &str) = ("X-Iceberg-Access-Delegation", "vended-credentials");

/// Properties as servers send them: strings by the specification, numbers and booleans by some.
type Properties = BTreeMap<String, Value>;

/// The parts of an answer that may hold keys. It has no `Debug`.
#[derive(Default)]
pub(super) struct Vended {
    config: Properties,
    credentials: Vec<StorageCredential>,
}

#[derive(Deserialize)]
struct StorageCredential {
    prefix: String,
    #[serde(default)]
    config: Properties,
}

impl RestCatalog {
    /// What the table's files are read and deleted with. `asked_at` is when the catalog was asked.
    pub(super) fn storage_of(
        &self,
        table: &TableName,
        metadata_location: &str,
        state: &TableState,
        vended: &Vended,
        asked_at: Timestamp,
    ) -> Storage {
        if !self.lends {
            return self.storage.clone();
        }
        let grants = self.grants(metadata_location, state, vended);
        self.storage.lending(Lent::new(grants, asked_at, self.lender(table.clone(), state.uuid)))
    }

    fn grants(&self, metadata_location: &str, state: &TableState, vended: &Vended) -> Vec<Grant> {
        let allows_http = self.base.starts_with("http://");
        vended.grants(&Table { rules: self.storage.rules(), metadata_location, state, allows_http })
    }

    /// Loads the table again for its keys, as long as it is the same table.
    fn lender(&self, table: TableName, uuid: Option<Uuid>) -> Lender {
        let catalog = self.clone();
        Arc::new(move || {
            let (catalog, table) = (catalog.clone(), table.clone());
            async move {
                let answer = catalog.ask(&table, "refs").await.map_err(|error| error.to_string())?;
                if answer.state.uuid != uuid {
                    return Err(format!("the name {table} was given to another table"));
                }
                Ok(catalog.grants(&answer.location, &answer.state, &answer.vended))
            }
            .boxed()
        })
    }
}

/// What the table's keys are for where the answer does not say.
pub(super) struct Table<'a> {
    pub(super) rules: &'a LocationRules,
    pub(super) metadata_location: &'a str,
    pub(super) state: &'a TableState,
    /// Whether keys may go to a store on `http://`: only where the catalog itself is there.
    pub(super) allows_http: bool,
}

impl Vended {
    /// Of an answer's `config` and `storage-credentials`; what makes no sense lends nothing.
    pub(super) fn of(config: Value, credentials: Value) -> Self {
        let credentials = match credentials {
            Value::Array(all) => all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect(),
            _ => Vec::new(),
        };
        Self { config: serde_json::from_value(config).unwrap_or_default(), credentials }
    }

    /// What it lends: `storage-credentials`, each for its prefix; the `config` for the buckets of the table's own
    /// folders. Of two with one prefix the first counts.
    pub(super) fn grants(&self, table: &Table<'_>) -> Vec<Grant> {
        let stores = table.stores();
        let mut grants = Vec::new();
        for credential in &self.credentials {
            let mut properties = self.config.clone();
            // A key that is not here must not be made whole by the table's.
            properties.retain(|name, _| !is_key(name));
            properties.extend(credential.config.clone());
            let prefixes = match table.rules.canonical(&credential.prefix) {
                Ok(prefix) => vec![prefix.into_owned()],
                // A mere scheme.
                Err(_) => stores.iter().filter(|store| table.is_of(store, &credential.prefix)).cloned().collect(),
            };
            grants.extend(prefixes.into_iter().filter_map(|prefix| grant(prefix, &properties, table)));
        }
        grants.extend(stores.into_iter().filter_map(|store| grant(store, &self.config, table)));
        grants
    }
}

impl Table<'_> {
    /// The buckets of the table's own folders and of its metadata, as `scheme://authority/`.
    fn stores(&self) -> BTreeSet<String> {
        let roots = roots_of(self.state, self.metadata_location, self.rules).unwrap_or_default();
        let roots = roots.iter().map(|root| root.as_str().to_owned());
        let locations = roots.chain([self.metadata_location.to_owned()]);
        locations.filter_map(|location| Some(format!("{}/", self.rules.parse(&location).ok()?.store()))).collect()
    }

    /// Whether a bucket is of this scheme, by any of its names.
    fn is_of(&self, store: &str, scheme: &str) -> bool {
        let scheme = scheme.trim_end_matches("://");
        let example = self.rules.parse(&format!("{scheme}://bucket"));
        example.is_ok_and(|example| store.split_once("://").is_some_and(|(of, _)| of == example.scheme()))
    }
}

fn is_key(name: &str) -> bool {
    matches!(name, "s3.access-key-id" | "s3.secret-access-key" | "s3.session-token" | "gcs.oauth2.token")
        || name.starts_with("s3.session-token-expires-at")
        || name.starts_with("gcs.oauth2.token-expires-at")
        || name.starts_with("adls.sas-token")
}

/// The keys for this canonical prefix, if there are whole ones among the properties.
fn grant(prefix: String, properties: &Properties, table: &Table<'_>) -> Option<Grant> {
    let text = |name: &str| match properties.get(name)? {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    let secret = |name: &str| text(name).map(Secret::new);
    let time = |name: &str| text(name)?.trim().parse().ok().map(Timestamp);
    let location = table.rules.parse(&prefix).ok()?;
    let mut settings = BTreeMap::new();
    let (keys, until) = match location.scheme() {
        "s3" => {
            let keys = Keys::S3 {
                access_key_id: secret("s3.access-key-id")?,
                secret_access_key: secret("s3.secret-access-key")?,
                session_token: secret("s3.session-token"),
            };
            settings.extend(text("client.region").or_else(|| text("s3.region")).map(|of| ("region".to_owned(), of)));
            if let Some(endpoint) = text("s3.endpoint") {
                let allows = table.allows_http && endpoint.starts_with("http://");
                settings.extend(allows.then(|| ("allow_http".to_owned(), "true".to_owned())));
                settings.insert("endpoint".to_owned(), endpoint);
            }
            (keys, time("s3.session-token-expires-at-ms"))
        }
        "gs" => (Keys::Gcs(secret("gcs.oauth2.token")?), time("gcs.oauth2.token-expires-at")),
        "abfss" => {
            let host = location.authority().split_once('@').map_or(location.authority(), |(_, host)| host);
            let account = host.split('.').next().unwrap_or(host);
            let of_host = |name: &str| [host, account].into_iter().map(|of| format!("{name}.{of}")).collect::<Vec<_>>();
            let signature = of_host("adls.sas-token").iter().find_map(|name| secret(name))?;
            let until = of_host("adls.sas-token-expires-at-ms").iter().find_map(|name| time(name));
            (Keys::Azure(signature), until)
        }
        _ => return None,
    };
    Some(Grant { prefix, settings, keys, until })
}
