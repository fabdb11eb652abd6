//! From sections to a [`Config`], collecting every problem on the way.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use toml::Spanned;
use toml::de::DeTable;

use super::raw::Section;
use super::reader::{Reader, Span};
use super::{
    Config, ConfigError, ErasureConfig, ExecutorConfig, ExpireConfig, GuardConfig, HttpConfig, InventoryConfig,
    LimitsConfig, MetricsConfig, OrphansConfig, OutsideLocation, Problem, PullSource, PullSourceKind, PullsConfig,
    RefAge, Severity, Sources, default,
};
use crate::model::{Age, LocationRules};

mod bucket;
mod place;
mod policy;
mod store;

/// More requests in flight than this only fill queues.
const MAX_CONCURRENCY: usize = 10_000;

pub(super) fn read(text: &str, file_name: &str, sources: &Sources<'_>) -> Result<(Config, Vec<Problem>), ConfigError> {
    let reader = Reader::new(text, file_name, sources);
    let (table, syntax) = DeTable::parse_recoverable(text);
    let config = if syntax.is_empty() {
        Some(config(Section::root(&reader, table.get_ref())))
    } else {
        // What the parser made of the rest would only lead to problems that are none.
        for error in syntax {
            reader.error(&error.span().unwrap_or_default(), error.message());
        }
        None
    };
    let problems = reader.into_problems();
    match config {
        Some(config) if problems.iter().all(|problem| problem.severity == Severity::Warning) => Ok((config, problems)),
        _ => Err(ConfigError::Invalid { file: file_name.to_owned(), problems }),
    }
}

/// Reads all sections. Where a problem was noted a default stands in, so that the rest is checked all the same.
pub(super) fn config(root: Section<'_>) -> Config {
    let locations = locations(root.section("locations"));
    let guard = guard(root.section("guard"));
    let floors = Floors { is_binding: !guard.allow_floor_below_minimum };
    let expire = expire(root.section("expire"), &floors);
    let catalogs = store::catalogs(&root, &locations);
    let config = Config {
        file: root.reader().file().to_owned(),
        catalogs,
        storage: bucket::storage(root.section("storage"), &locations),
        state: store::state(root.section("state"), &locations),
        http: http(root.section("http")),
        orphans: orphans(root.section("orphans"), &floors, &locations),
        guard,
        inventory: inventory(root.section("inventory")),
        erasure: erasure(root.section("erasure")),
        limits: limits(root.section("limits")),
        pulls: pulls(root.section("pulls")),
        metrics: metrics(root.section("metrics")),
        executor: executor(root.section("executor")),
        policies: policy::policies(&root, expire.floor),
        schedules: policy::schedules(&root),
        expire,
        locations,
    };
    root.close();
    config
}

/// Safety rules 5 and 15: what no configuration goes below by accident.
struct Floors {
    is_binding: bool,
}

impl Floors {
    fn check(&self, section: &Section<'_>, key: &str, minimum: Age, or_else: Age) -> Age {
        let Some(age) = section.age(key) else { return or_else };
        let (at, age) = (age.span(), age.into_inner());
        if age < minimum {
            let message = format!("{key} {age} is below the minimum of {}h", minimum.0 / Age::hours(1).0);
            let reader = section.reader();
            if self.is_binding {
                let hint = "only [guard] allow_floor_below_minimum = true allows less";
                reader.error_with_hint(&at, message, hint);
            } else {
                reader.warning(&at, message, "allowed by [guard] allow_floor_below_minimum");
            }
        }
        age
    }
}

/// Warns of an age that has no effect.
fn warn_below_floor(reader: &Reader<'_>, at: &Span, age: Age, floor: Age) {
    if age < floor {
        let message = format!("older_than {age} is below [expire] floor {floor}, which counts instead");
        reader.warning(at, message, format!("write \"{floor}\""));
    }
}

fn plain_age(section: &Section<'_>, key: &str, or_else: Age) -> Age {
    section.age(key).map_or(or_else, Spanned::into_inner)
}

fn locations(section: Section<'_>) -> LocationRules {
    let schemes = place::same_places(&section.section("schemes"), |name| {
        let lower = name.to_ascii_lowercase();
        if matches!(lower.as_str(), "s3a" | "s3n") { "s3".to_owned() } else { lower }
    });
    let authorities = place::same_places(&section.section("authorities"), str::to_owned);
    section.close();
    LocationRules { schemes, authorities }
}

fn guard(section: Section<'_>) -> GuardConfig {
    let guard = GuardConfig {
        max_ratio: section.ratio("max_ratio").unwrap_or(default::GUARD_MAX_RATIO),
        min_objects: section.number("min_objects", 0.., "0 or more").unwrap_or(default::GUARD_MIN_OBJECTS),
        max_refs: section.number("max_refs", 0.., "0 or more").unwrap_or(default::GUARD_MAX_REFS),
        max_snapshots_per_commit: section
            .number("max_snapshots_per_commit", 1.., "1 or more")
            .unwrap_or(default::GUARD_MAX_SNAPSHOTS_PER_COMMIT),
        allow_floor_below_minimum: section
            .boolean("allow_floor_below_minimum")
            .unwrap_or(default::GUARD_ALLOW_FLOOR_BELOW_MINIMUM),
    };
    section.close();
    guard
}

fn http(section: Section<'_>) -> HttpConfig {
    let listen: Option<SocketAddr> =
        section.by_type("listen", "an IP address and a port such as \"127.0.0.1:8080\" or \"[::]:8080\"");
    section.close();
    HttpConfig { listen: listen.unwrap_or(default::HTTP_LISTEN) }
}

fn expire(section: Section<'_>, floors: &Floors) -> ExpireConfig {
    let older_than = section.age("older_than");
    let floor = floors.check(&section, "floor", default::MINIMUM_FLOOR, default::EXPIRE_FLOOR);
    if let Some(age) = &older_than {
        warn_below_floor(section.reader(), &age.span(), *age.get_ref(), floor);
    }
    let expire = ExpireConfig {
        older_than: older_than.map_or(default::EXPIRE_OLDER_THAN, Spanned::into_inner),
        retain_last: section.number("retain_last", 1.., "1 or more").unwrap_or(default::EXPIRE_RETAIN_LAST),
        grace: plain_age(&section, "grace", default::EXPIRE_GRACE),
        drop_grace: floors.check(&section, "drop_grace", default::MINIMUM_DROP_GRACE, default::EXPIRE_DROP_GRACE),
        floor,
        ref_age: section
            .choice("ref_age", &[("created", RefAge::Created), ("spec", RefAge::Spec)])
            .unwrap_or(default::EXPIRE_REF_AGE),
        keep_fork_points: section.boolean("keep_fork_points").unwrap_or(default::EXPIRE_KEEP_FORK_POINTS),
        outside_location: section
            .choice("outside_location", &[("keep", OutsideLocation::Keep), ("delete", OutsideLocation::Delete)])
            .unwrap_or(default::EXPIRE_OUTSIDE_LOCATION),
    };
    section.close();
    expire
}

fn orphans(section: Section<'_>, floors: &Floors, rules: &LocationRules) -> OrphansConfig {
    let minimum = default::MINIMUM_ORPHAN_AGE;
    let orphans = OrphansConfig {
        older_than: floors.check(&section, "older_than", minimum, default::ORPHANS_OLDER_THAN),
        grace: floors.check(&section, "grace", minimum, default::ORPHANS_GRACE),
        metadata_older_than: floors.check(
            &section,
            "metadata_older_than",
            minimum,
            default::ORPHANS_METADATA_OLDER_THAN,
        ),
        protected_prefixes: place::locations(&section, "protected_prefixes", rules),
        external_readers: place::locations(&section, "external_readers", rules),
    };
    section.close();
    orphans
}

fn inventory(section: Section<'_>) -> InventoryConfig {
    let listing = section.boolean("listing").unwrap_or(default::INVENTORY_LISTING);
    section.close();
    InventoryConfig { listing }
}

fn erasure(section: Section<'_>) -> ErasureConfig {
    let grace = plain_age(&section, "grace", default::ERASURE_GRACE);
    section.close();
    ErasureConfig { grace }
}

fn limits(section: Section<'_>) -> LimitsConfig {
    let words = format!("1 to {MAX_CONCURRENCY}");
    let limits = LimitsConfig {
        memory: section.size("memory").unwrap_or(default::LIMITS_MEMORY),
        concurrency: section.number("concurrency", 1..=MAX_CONCURRENCY, &words).unwrap_or(default::LIMITS_CONCURRENCY),
    };
    section.close();
    limits
}

fn pulls(section: Section<'_>) -> PullsConfig {
    use PullSourceKind::{File, Github, Gitlab};
    let kind = section.choice("type", &[("github", Github), ("gitlab", Gitlab), ("file", File)]);
    let url = section.text("url");
    let repository = section.text("repository").map(|text| text.value);
    let token = section.secret("token").map(Spanned::into_inner);
    match kind {
        Some(Github | Gitlab) if repository.is_none() => {
            section.missing("repository", "owner/name of the one repository whose pull requests count");
        }
        Some(File) if url.is_none() => section.missing("url", "the location of the file"),
        None if !section.has("type") && (url.is_some() || repository.is_some() || token.is_some()) => {
            section.missing("type", "github, gitlab or file");
        }
        _ => {}
    }
    let source = kind.map(|kind| PullSource { kind, url: url.map(|text| text.value), repository, token });
    let pulls = PullsConfig {
        source,
        margin: section.number("margin", 0.., "0 or more").unwrap_or(default::PULLS_MARGIN),
        drop_delay: plain_age(&section, "drop_delay", default::PULLS_DROP_DELAY),
    };
    section.close();
    pulls
}

fn metrics(section: Section<'_>) -> MetricsConfig {
    let metrics = MetricsConfig {
        top_branches: section.number("top_branches", 0.., "0 or more").unwrap_or(default::METRICS_TOP_BRANCHES),
        max_series: section.number("max_series", 1.., "1 or more").unwrap_or(default::METRICS_MAX_SERIES),
    };
    section.close();
    metrics
}

fn executor(section: Section<'_>) -> ExecutorConfig {
    let choices = [("local", ExecutorConfig::Local), ("kubernetes", ExecutorConfig::Kubernetes)];
    let executor = section.choice("type", &choices).unwrap_or(default::EXECUTOR);
    if executor == ExecutorConfig::Kubernetes {
        section.reader().warning(
            &section.at,
            "[executor] type \"kubernetes\" comes with a later version; this one runs everything in its own process",
            "write \"local\"",
        );
    }
    section.close();
    executor
}

/// Names that a file gives twice.
#[derive(Default)]
struct Names(BTreeMap<String, Span>);

impl Names {
    /// Takes a name, or says on which line it was taken before.
    fn take(&mut self, name: &str, at: &Span, reader: &Reader<'_>) -> Result<(), usize> {
        if let Some(before) = self.0.get(name) {
            return Err(reader.position(before).line);
        }
        self.0.insert(name.to_owned(), at.clone());
        Ok(())
    }
}
