//! What holds where the file says nothing, each value with its reason.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    Config, ErasureConfig, ExecutorConfig, ExpireConfig, GuardConfig, HttpConfig, InventoryConfig, LimitsConfig,
    MetricsConfig, OrphansConfig, OutsideLocation, PullsConfig, RefAge, Secret, StateConfig,
};
use crate::model::{Age, LocationRules};

/// Where packages and containers put the file.
pub const CONFIG_FILE: &str = "/etc/icewarden/icewarden.toml";

/// The folder that systemd's `StateDirectory=icewarden` makes.
pub const STATE_DATABASE: &str = "sqlite:///var/lib/icewarden/icewarden.db";
/// Beside the database; several replicas need a bucket here.
pub const STATE_PLANS: &str = "file:///var/lib/icewarden/plans";

/// What Iceberg's own clients ask tokens for.
pub const OAUTH2_SCOPE: &str = "catalog";

/// A catalog that lends keys to storage often is the only one who has any.
pub const VENDED_CREDENTIALS: bool = true;

/// Nobody but this machine, until somebody says otherwise.
pub const HTTP_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Iceberg's own `history.expire.max-snapshot-age-ms`.
pub const EXPIRE_OLDER_THAN: Age = Age::days(5);
/// Iceberg's own `history.expire.min-snapshots-to-keep`.
pub const EXPIRE_RETAIN_LAST: u32 = 1;
/// A working day to see what was marked and to keep some of it.
pub const EXPIRE_GRACE: Age = Age::hours(24);
/// A working day to notice that a branch is gone.
pub const EXPIRE_DROP_GRACE: Age = Age::hours(24);
/// Longer than readers and writers of a fresh snapshot need to get going.
pub const EXPIRE_FLOOR: Age = Age::hours(1);
/// A branch cut today from an old snapshot is a day old, not as old as the snapshot.
pub const EXPIRE_REF_AGE: RefAge = RefAge::Created;
/// A diff of a branch against its base stays possible.
pub const EXPIRE_KEEP_FORK_POINTS: bool = true;
/// A file outside the table's folders may have another owner.
pub const EXPIRE_OUTSIDE_LOCATION: OutsideLocation = OutsideLocation::Keep;

/// Iceberg's own default of its orphan actions: longer than any job that writes files before it commits.
pub const ORPHANS_OLDER_THAN: Age = Age::days(3);
/// As for expiry.
pub const ORPHANS_GRACE: Age = Age::hours(24);
/// A metadata file is small, and may be somebody's way back.
pub const ORPHANS_METADATA_OLDER_THAN: Age = Age::days(30);

/// Where most of what is listed is an orphan, a wrong location is likelier than that much rubbish.
pub const GUARD_MAX_RATIO: f64 = 0.5;
/// In a small table a single failed job is a large share.
pub const GUARD_MIN_OBJECTS: u64 = 100;
/// More refs than people drop in a day.
pub const GUARD_MAX_REFS: u32 = 50;
/// Keeps one commit's body at some 300 KB.
pub const GUARD_MAX_SNAPSHOTS_PER_COMMIT: u32 = 10_000;
/// Floors hold.
pub const GUARD_ALLOW_FLOOR_BELOW_MINIMUM: bool = false;

/// What lies in the store is known only by listing it.
pub const INVENTORY_LISTING: bool = true;

/// An erasure is asked for by law; the two proofs stay.
pub const ERASURE_GRACE: Age = Age::ZERO;

/// Fits a small pod beside the rest of the process.
pub const LIMITS_MEMORY: u64 = 2 << 30;
/// Saturates a gigabit link to an object store without being throttled.
pub const LIMITS_CONCURRENCY: usize = 64;

/// Pull requests that are just being opened or closed.
pub const PULLS_MARGIN: u32 = 5;
/// Some pipelines publish after the merge.
pub const PULLS_DROP_DELAY: Age = Age::hours(1);

/// More than a page of a dashboard shows.
pub const METRICS_TOP_BRANCHES: u32 = 20;
/// What a small Prometheus takes from one target.
pub const METRICS_MAX_SERIES: u32 = 100_000;

/// Works everywhere.
pub const EXECUTOR: ExecutorConfig = ExecutorConfig::Local;

/// Safety rule 5: no orphan, and nothing that lives by its grace, is deleted younger than this.
pub const MINIMUM_ORPHAN_AGE: Age = Age::hours(24);
/// Safety rule 5: no snapshot younger than this is removed.
pub const MINIMUM_FLOOR: Age = Age::hours(1);
/// Safety rule 15: a dropped ref can be restored at least this long.
pub const MINIMUM_DROP_GRACE: Age = Age::hours(24);

/// All of it together, without catalogs.
pub(super) fn config() -> Config {
    Config {
        file: String::new(),
        catalogs: Vec::new(),
        storage: BTreeMap::new(),
        state: StateConfig { database: Secret::new(STATE_DATABASE), plans: STATE_PLANS.to_owned() },
        http: HttpConfig { listen: HTTP_LISTEN },
        expire: ExpireConfig {
            older_than: EXPIRE_OLDER_THAN,
            retain_last: EXPIRE_RETAIN_LAST,
            grace: EXPIRE_GRACE,
            drop_grace: EXPIRE_DROP_GRACE,
            floor: EXPIRE_FLOOR,
            ref_age: EXPIRE_REF_AGE,
            keep_fork_points: EXPIRE_KEEP_FORK_POINTS,
            outside_location: EXPIRE_OUTSIDE_LOCATION,
        },
        orphans: OrphansConfig {
            older_than: ORPHANS_OLDER_THAN,
            grace: ORPHANS_GRACE,
            metadata_older_than: ORPHANS_METADATA_OLDER_THAN,
            protected_prefixes: Vec::new(),
            external_readers: Vec::new(),
        },
        locations: LocationRules::default(),
        guard: GuardConfig {
            max_ratio: GUARD_MAX_RATIO,
            min_objects: GUARD_MIN_OBJECTS,
            max_refs: GUARD_MAX_REFS,
            max_snapshots_per_commit: GUARD_MAX_SNAPSHOTS_PER_COMMIT,
            allow_floor_below_minimum: GUARD_ALLOW_FLOOR_BELOW_MINIMUM,
        },
        inventory: InventoryConfig { listing: INVENTORY_LISTING },
        erasure: ErasureConfig { grace: ERASURE_GRACE },
        limits: LimitsConfig { memory: LIMITS_MEMORY, concurrency: LIMITS_CONCURRENCY },
        pulls: PullsConfig { source: None, margin: PULLS_MARGIN, drop_delay: PULLS_DROP_DELAY },
        metrics: MetricsConfig { top_branches: METRICS_TOP_BRANCHES, max_series: METRICS_MAX_SERIES },
        executor: EXECUTOR,
        policies: Vec::new(),
        schedules: Vec::new(),
    }
}
