//! The configuration, valid by construction.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::model::{Age, LocationRules};

pub mod policy;

pub use policy::{Pattern, Policy, PolicyExpire};

/// All that the configuration file says, checked, with defaults filled in.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[[catalog]]`, names unique, at least one.
    pub catalogs: Vec<CatalogConfig>,
    /// `[storage."s3://bucket"]`: options by canonical `scheme://authority`, as object_store names them.
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
    /// `[limits]`.
    pub limits: LimitsConfig,
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
#[derive(Debug, Clone)]
pub struct CatalogConfig {
    /// Its name; the first part of `catalog.namespace.table`.
    pub name: String,
    /// How to reach it.
    pub kind: CatalogKind,
    /// `warehouse`.
    pub warehouse: Option<String>,
}

/// How a catalog is reached.
#[derive(Debug, Clone)]
pub enum CatalogKind {
    /// JDBC layout; `sqlite:///path` (the URI may hold a password, so it is a secret).
    Sql {
        /// The database.
        uri: Secret,
    },
    /// An Iceberg REST catalog.
    Rest {
        /// The base, without `/v1`.
        uri: String,
        /// A static bearer token.
        token: Option<Secret>,
    },
}

/// `[state]`.
#[derive(Debug, Clone)]
pub struct StateConfig {
    /// `sqlite:///path`.
    pub database: Secret,
    /// `file:///path` or `s3://bucket/prefix`.
    pub plans: String,
}

/// `[http]`.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address and port.
    pub listen: std::net::SocketAddr,
}

/// `[expire]`: what a table gets that says nothing itself.
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone)]
pub struct InventoryConfig {
    /// Whether to list the store.
    pub listing: bool,
}

/// `[limits]`.
#[derive(Debug, Clone)]
pub struct LimitsConfig {
    /// Bytes that caches and sets may take.
    pub memory: u64,
    /// Requests in flight.
    pub concurrency: usize,
}

/// One `[[schedule]]`.
#[derive(Debug, Clone)]
pub struct ScheduleConfig {
    /// `expire`, `orphans`, `inventory`, `sweep` or `reconcile`.
    pub job: String,
    /// Five fields.
    pub cron: String,
    /// IANA name.
    pub time_zone: chrono_tz::Tz,
    /// Which tables.
    pub tables: Vec<Pattern>,
}
