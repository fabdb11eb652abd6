//! The configuration, valid by construction.
//!
//! Text becomes spanned sections (`raw.rs`), which become a [`Config`] or a [`ConfigError`] that lists every
//! problem at once (`check.rs`). Defaults are named constants in [`default`]. This is the only module that
//! reads the environment, and it does so in [`Config::load`] and [`Config::find`] alone.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::model::{Age, LocationRules, TableName};

mod check;
mod cron;
pub mod default;
mod later;
pub mod policy;
mod postgres;
pub mod problem;
mod raw;
mod reader;

pub use policy::{
    EffectiveExpire, EffectivePolicy, Exclusive, Mode, OnPrClosed, Pattern, Policy, PolicyExpire, RefRule, RefRules,
    Sourced,
};
pub use postgres::PostgresUrl;
pub use problem::{ConfigError, Position, Problem, Severity};

/// All that the configuration file says, checked, with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file, as it was named; empty for the built-in defaults.
    pub file: String,
    /// `[[catalog]]`, names unique, at least one.
    pub catalogs: Vec<CatalogConfig>,
    /// `[storage."s3://bucket"]`: options by canonical `scheme://authority`, as `object_store` names them.
    pub storage: BTreeMap<String, BTreeMap<String, Secret>>,
    /// `[state]`.
    pub state: StateConfig,
    /// `[http]`.
    pub http: HttpConfig,
    /// `[expire]`.
    pub expire: ExpireConfig,
    /// `[orphans]`.
    pub orphans: OrphansConfig,
    /// `[locations]`.
    pub locations: LocationRules,
    /// `[guard]`.
    pub guard: GuardConfig,
    /// `[inventory]`.
    pub inventory: InventoryConfig,
    /// `[erasure]`.
    pub erasure: ErasureConfig,
    /// `[limits]`.
    pub limits: LimitsConfig,
    /// `[pulls]`.
    pub pulls: PullsConfig,
    /// `[metrics]`.
    pub metrics: MetricsConfig,
    /// `[executor]`.
    pub executor: ExecutorConfig,
    /// `[[policy]]`, in file order.
    pub policies: Vec<Policy>,
    /// `[[schedule]]`.
    pub schedules: Vec<ScheduleConfig>,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One `[[catalog]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogConfig {
    /// Its name; the first part of `catalog.namespace.table`.
    pub name: String,
    /// How to reach it.
    pub kind: CatalogKind,
    /// `warehouse`.
    pub warehouse: Option<String>,
}

/// How a catalog is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogKind {
    /// JDBC layout; `sqlite:///path` or `postgres://…` (the URI may hold a password, so it is a secret).
    Sql {
        /// The database, its path absolute.
        uri: Secret,
    },
    /// An Iceberg REST catalog.
    Rest(RestConfig),
}

/// How a REST catalog is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestConfig {
    /// The base, without `/v1`.
    pub uri: String,
    /// Who we are to it.
    pub auth: AuthConfig,
    /// `[catalog.headers]`: sent with every request, by name in lower case.
    pub headers: BTreeMap<String, Secret>,
    /// `ca_file`, read: authorities that are trusted beside the system's.
    pub ca: Option<CaFile>,
    /// `vended_credentials`: whether it is asked for keys to storage.
    pub vended_credentials: bool,
}

/// Who we are to a REST catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthConfig {
    /// Nobody.
    None,
    /// The bearer of a token that does not change.
    Token(Secret),
    /// OAuth2 client credentials, for which tokens are given.
    Credential {
        /// The part of `credential` before its first colon.
        id: String,
        /// The part after it.
        secret: Secret,
        /// Where tokens are asked for, if not at the catalog itself.
        oauth2_server_uri: Option<String>,
        /// What tokens are asked for.
        scope: String,
    },
}

/// A file of certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaFile {
    /// As it was named.
    pub name: String,
    /// What is in it: one or several certificates in PEM.
    pub pem: String,
}

/// `[state]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateConfig {
    /// `sqlite:///path` or `postgres://…`.
    pub database: Secret,
    /// `file:///path` or `s3://bucket/prefix`.
    pub plans: String,
}

/// `[http]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address and port.
    pub listen: std::net::SocketAddr,
}

/// `[expire]`: what a table gets that says nothing itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpireConfig {
    /// Snapshots older than this may go.
    pub older_than: Age,
    /// A branch keeps this many of its newest snapshots.
    pub retain_last: u32,
    /// From mark to sweep.
    pub grace: Age,
    /// How long a ref that Icewarden dropped can be restored.
    pub drop_grace: Age,
    /// No snapshot younger than this is ever removed.
    pub floor: Age,
    /// What a ref's age is counted from.
    pub ref_age: RefAge,
    /// Keep the base snapshot of every open branch.
    pub keep_fork_points: bool,
    /// What becomes of expired files outside the table's own folders.
    pub outside_location: OutsideLocation,
}

/// What a ref's age is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefAge {
    /// The later of its head's commit and the ref's creation.
    Created,
    /// Its head's commit, as the specification has it.
    Spec,
}

/// What becomes of expired files outside the table's own folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideLocation {
    /// They are kept and counted.
    Keep,
    /// They are marked like the others.
    Delete,
}

/// `[orphans]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphansConfig {
    /// Unreferenced objects younger than this are kept.
    pub older_than: Age,
    /// From mark to sweep.
    pub grace: Age,
    /// Metadata files off the log are orphans from this age on.
    pub metadata_older_than: Age,
    /// Locations under which nothing is an orphan.
    pub protected_prefixes: Vec<String>,
    /// Metadata locations whose closure counts as referenced.
    pub external_readers: Vec<String>,
}

/// `[guard]`.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardConfig {
    /// Largest share of listed objects or bytes that may be orphans.
    pub max_ratio: f64,
    /// From this many listed objects on the share counts.
    pub min_objects: u64,
    /// Most refs of one table that one run may drop.
    pub max_refs: u32,
    /// Most snapshots that one commit removes.
    pub max_snapshots_per_commit: u32,
    /// Lets the configuration go below the floors of safety rule 5.
    pub allow_floor_below_minimum: bool,
}

/// `[inventory]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryConfig {
    /// Whether to list the store.
    pub listing: bool,
}

/// `[erasure]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasureConfig {
    /// From mark to sweep of what an erasure frees.
    pub grace: Age,
}

/// `[pulls]`: where pull requests are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullsConfig {
    /// Nowhere, unless configured.
    pub source: Option<PullSource>,
    /// Branches beyond the number of open pull requests before that is a finding.
    pub margin: u32,
    /// From the close of a pull request to the drop of its branch.
    pub drop_delay: Age,
}

/// The one repository whose pull requests count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSource {
    /// The kind of service.
    pub kind: PullSourceKind,
    /// Its address, where it is not the public one; for a file its location.
    pub url: Option<String>,
    /// `owner/name`.
    pub repository: Option<String>,
    /// For reading.
    pub token: Option<Secret>,
}

/// The kind of service that knows pull requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PullSourceKind {
    /// GitHub's API.
    Github,
    /// GitLab's API.
    Gitlab,
    /// A file that another program writes.
    File,
}

/// `[metrics]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Branches of a table with series of their own, by bytes; the rest is summed.
    pub top_branches: u32,
    /// Above this many series tables are summed by namespace.
    pub max_series: u32,
}

/// `[executor]`: who does the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorConfig {
    /// This process.
    Local,
    /// Jobs in the cluster.
    Kubernetes,
}

/// `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Bytes that caches and sets may take.
    pub memory: u64,
    /// Requests in flight.
    pub concurrency: usize,
}

/// One `[[schedule]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleConfig {
    /// `expire`, `orphans`, `inventory`, `sweep` or `reconcile`.
    pub job: String,
    /// Five fields.
    pub cron: String,
    /// IANA name.
    pub time_zone: chrono_tz::Tz,
    /// Which tables.
    pub tables: Vec<Pattern>,
    /// Where the file says `tables`, or where the schedule begins.
    pub at: Position,
}

/// What the configuration is read with, beside its text; passed in, so that reading it is a function of values.
pub struct Sources<'a> {
    /// Absolute; relative paths in the file are relative to it.
    pub folder: &'a Path,
    /// A variable of the environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a `*_file`.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Config {
    /// Reads the file. The warnings are for the reader; the configuration is good without them.
    pub fn load(path: &Path) -> Result<(Self, Vec<Problem>), ConfigError> {
        let unreadable = |error: io::Error| ConfigError::unreadable(path, &error);
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let absolute = std::path::absolute(path).map_err(unreadable)?;
        let sources = Sources {
            folder: absolute.parent().unwrap_or(Path::new("/")),
            env: &read_env,
            read: &|path| std::fs::read_to_string(path),
        };
        Self::parse(&text, &path.display().to_string(), &sources)
    }

    /// The sections and keys of this configuration's file that have no effect in this version, in the order of the
    /// file.
    pub fn keys_without_effect(&self) -> Vec<(String, Position)> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        later::keys_without_effect(&text)
    }

    /// Reads the text of a file of this name, as messages name it.
    pub fn parse(text: &str, file_name: &str, sources: &Sources<'_>) -> Result<(Self, Vec<Problem>), ConfigError> {
        check::read(text, file_name, sources)
    }

    /// Which file: the one of `--config`, else of `ICEWARDEN_CONFIG`, else `/etc/icewarden/icewarden.toml`.
    pub fn find(cli: Option<PathBuf>) -> PathBuf {
        find(cli, &read_env)
    }

    /// What holds where the file says nothing; it has no catalogs.
    pub fn built_in_defaults() -> Self {
        default::config()
    }

    /// What the policies say about a table: key by key, the most literal pattern wins.
    pub fn policy_for(&self, table: &TableName) -> EffectivePolicy {
        EffectivePolicy::of(&self.policies, table)
    }

    /// A warning for each `tables` of a policy or schedule with patterns that match none of these tables,
    /// which are all tables of all catalogs.
    pub fn unmatched_patterns(&self, tables: &[TableName]) -> Vec<Problem> {
        let policies = self.policies.iter().map(|policy| ("policy", &policy.tables, policy.at));
        let schedules = self.schedules.iter().map(|schedule| ("schedule", &schedule.tables, schedule.at));
        let unmatched = policies.chain(schedules).filter_map(|(what, patterns, at)| {
            let is_unmatched = |pattern: &&Pattern| {
                pattern.literal_count() > 0 && !tables.iter().any(|table| pattern.matches_table(table))
            };
            let unmatched: Vec<&str> = patterns.iter().filter(is_unmatched).map(Pattern::as_str).collect();
            (!unmatched.is_empty()).then(|| Problem {
                severity: Severity::Warning,
                file: self.file.clone(),
                at,
                message: format!("{what} tables = {unmatched:?} matches no table of any catalog"),
                hint: Some("icewarden tables".to_owned()),
            })
        });
        unmatched.collect()
    }
}

fn find(cli: Option<PathBuf>, env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    cli.or_else(|| env("ICEWARDEN_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from(default::CONFIG_FILE))
}

/// Who runs this process, for the audit log.
pub fn user() -> String {
    read_env("USER").or_else(|| read_env("LOGNAME")).unwrap_or_else(|| "unknown".to_owned())
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn read_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests;
