//! Runs one scenario, step by step, and compares what happened with what its author expects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use icewarden::catalog::metadata;
use icewarden::model::{LocationRules, TableState, Timestamp};
use serde_json::Value;

use super::drive::{Ended, Stage};
use super::faults::Faults;
use super::format::{Expect, On, OutcomeSpec, Scenario, Step, time};
use super::lake::World;
use super::rest_server::Catalog;
use super::store::Bucket;

/// What holds where a scenario's `config` says nothing.
const DEFAULTS: &str = r#"
[expire]
older_than = "5d"
retain_last = 1
grace = "0s"
floor = "24h"
ref_age = "spec"
keep_fork_points = false
[orphans]
older_than = "72h"
metadata_older_than = "72h"
grace = "0s"
[guard]
max_refs = 4294967295
allow_floor_below_minimum = true
"#;

/// The scenario's configuration: its own text over the defaults, on this catalog and this folder.
fn config(own: [&str; 2], uri: &str, folder: &Path, states: usize) -> Result<String, String> {
    let parse = |text: &str| text.parse::<toml::Table>().map_err(|error| format!("config: {error}"));
    let folder = folder.display();
    let places = format!(
        "[[catalog]]\nname = \"lake\"\ntype = \"rest\"\nuri = \"{uri}\"\n\
         [state]\ndatabase = \"sqlite://{folder}/state-{states}.db\"\nplans = \"file://{folder}/plans-{states}\"\n"
    );
    let mut merged = parse(DEFAULTS)?;
    merge(&mut merged, parse(&places)?);
    for own in own {
        merge(&mut merged, parse(own)?);
    }
    Ok(merged.to_string())
}

fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => merge(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// A scenario in progress.
struct Run {
    scenario: Scenario,
    world: World,
    catalog: Arc<Catalog>,
    buckets: BTreeMap<String, Bucket>,
    /// What the store held before the first step.
    seeded: BTreeSet<String>,
}

/// Runs a scenario's text; an error has one line for each thing that is not as expected.
pub(crate) async fn run(text: &str) -> Result<(), Vec<String>> {
    match prepare(text).await {
        Ok((run, stage)) => run.steps(stage).await,
        Err(error) => Err(vec![error]),
    }
}

async fn prepare(text: &str) -> Result<(Run, Stage), String> {
    let scenario = Scenario::parse(text)?;
    let world = World::build(&scenario)?;
    let now = scenario.now()?;
    let clock = Arc::new(AtomicI64::new(now.0));
    let faults = Arc::new(Faults::default());
    let mut buckets: BTreeMap<String, Bucket> = BTreeMap::new();
    let rules = LocationRules::default();
    let locations = world.objects.keys().chain(world.tables.iter().map(|table| &table.root));
    for location in locations {
        let store = rules.parse(location).map_err(|error| error.to_string())?.store().to_owned();
        let bucket = || Bucket::new(&store, Arc::clone(&clock), Arc::clone(&faults));
        buckets.entry(store.clone()).or_insert_with(bucket);
    }
    for (location, (bytes, at)) in &world.objects {
        let store = rules.parse(location).map_err(|error| error.to_string())?.store().to_owned();
        buckets[&store].seed(location, bytes.clone(), *at).await;
    }
    let catalog = Catalog::new(&world, buckets.clone(), Arc::clone(&clock), &faults);
    let address = Arc::clone(&catalog).serve().await;
    let stage = Stage { uri: format!("http://{address}"), clock, faults, folder: tempfile::tempdir().unwrap() };
    let seeded = world.objects.keys().cloned().collect();
    Ok((Run { scenario, world, catalog, buckets, seeded }, stage))
}

impl Run {
    async fn steps(self, stage: Stage) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let mut refused = None;
        let mut states = 0;
        for (index, step) in self.scenario.steps.iter().enumerate() {
            let name = format!("step {} ({:?})", index + 1, step.job).to_lowercase();
            states += usize::from(step.lose_state);
            let sightings = if index == 0 && states == 0 { self.sightings() } else { Ok(Vec::new()) };
            match self.step(&stage, step, states, &mut refused, sightings).await {
                Ok(differences) => wrong.extend(differences.into_iter().map(|one| format!("{name}: {one}"))),
                Err(error) => {
                    wrong.push(format!("{name}: {error}"));
                    break;
                }
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        wrong.insert(0, format!("{}: {}", self.scenario.case, self.scenario.title));
        Err(wrong)
    }

    async fn step(
        &self,
        stage: &Stage,
        step: &Step,
        states: usize,
        refused: &mut Option<String>,
        sightings: Result<Vec<(String, Timestamp, TableState)>, String>,
    ) -> Result<Vec<String>, String> {
        let sightings = sightings?;
        let at = time(&step.at, self.scenario.now()?)?;
        stage.clock.store(at.0, Ordering::SeqCst);
        let plans = stage.folder.path().join(format!("plans-{states}"));
        let rules = LocationRules::default();
        let bucket = |location: &str| self.buckets.get(rules.parse(location).ok()?.store()).cloned();
        for change in &step.before {
            change.outside(&self.world, &self.catalog, bucket, &plans, self.scenario.now()?, at).await?;
        }
        stage.faults.arm(&step.faults, &self.world)?;
        let config = config([&self.scenario.config, &step.config], &stage.uri, stage.folder.path(), states)?;
        let confirm = match step.confirm {
            true => Some(refused.take().ok_or("confirm = true, but the step before was not refused with a plan")?),
            false => None,
        };
        let snapshots = step.snapshot_ids.iter().map(|id| self.snapshot_number(id)).collect::<Result<_, _>>()?;
        let applied = self.catalog.applied.load(Ordering::SeqCst);
        let posted = self.catalog.posted.load(Ordering::SeqCst);
        let ended = stage
            .drive(&config, step, snapshots, confirm, &self.buckets, &self.catalog, &self.world, sightings)
            .await?;
        stage.faults.arm(&[], &self.world)?;
        let applied = self.catalog.applied.load(Ordering::SeqCst) - applied;
        let posted = self.catalog.posted.load(Ordering::SeqCst) - posted;
        *refused = ended.refused_plan();
        let removed: BTreeSet<String> = self.buckets.values().flat_map(Bucket::take_removed).collect();
        let mut wrong = self.compare(&step.expect, &ended, &removed).await?;
        wrong.extend(self.compare_with_the_world(step, &ended, &removed, applied, posted).await);
        if !wrong.is_empty() {
            wrong.push(format!("what the report says: {ended}"));
        }
        Ok(wrong)
    }

    /// What earlier runs have seen: at each time that a ref of the table was `created`, the refs that were there.
    fn sightings(&self) -> Result<Vec<(String, Timestamp, TableState)>, String> {
        let mut all = Vec::new();
        for table in &self.world.tables {
            let text = table.metadata.to_string();
            let state =
                metadata::parse(text.as_bytes(), &table.metadata_location).map_err(|error| error.to_string())?;
            let times: BTreeSet<Timestamp> = table.sightings.iter().map(|(_, at)| *at).collect();
            for at in times {
                let mut then = state.clone();
                then.last_updated = at;
                let is_there = |name: &str| table.sightings.iter().any(|(of, created)| of == name && *created <= at);
                then.refs.retain(|name, _| name.is_main() || is_there(name.as_str()));
                all.push((table.name.clone(), at, then));
            }
        }
        Ok(all)
    }

    /// A snapshot's number; of several tables the first that has the name counts.
    fn snapshot_number(&self, id: &str) -> Result<i64, String> {
        let known = self.world.tables.iter().find_map(|table| table.snapshots.get(id).copied());
        known.or_else(|| id.parse().ok()).ok_or_else(|| format!("no snapshot {id}"))
    }

    async fn compare(&self, expect: &Expect, ended: &Ended, removed: &BTreeSet<String>) -> Result<Vec<String>, String> {
        let mut wrong = Vec::new();
        let mut differ = |what: &str, expected: &dyn std::fmt::Debug, got: &dyn std::fmt::Debug| {
            wrong.push(format!("{what}: expected {expected:?}, got {got:?}"));
        };
        let outcomes = ended.outcomes();
        match &expect.outcome {
            None => {}
            Some(OutcomeSpec::All(word))
                if !outcomes.is_empty() && outcomes.values().all(|got| got == word.as_str()) => {}
            Some(OutcomeSpec::All(word)) => differ("outcome", &word.as_str(), &outcomes),
            Some(OutcomeSpec::PerTable(words)) => {
                for (table, word) in words {
                    if outcomes.get(table).map(String::as_str) != Some(word.as_str()) {
                        differ(&format!("outcome of {table}"), &word.as_str(), &outcomes.get(table));
                    }
                }
            }
        }
        for (table, names) in &expect.refs {
            let metadata = self.catalog.metadata(table).await.ok_or_else(|| format!("no table {table}"))?;
            let got: BTreeSet<_> = metadata["refs"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
            let expected: BTreeSet<_> = names.iter().collect();
            if got != expected {
                differ(&format!("refs of {table}"), &expected, &got);
            }
        }
        for (table, ids) in &expect.snapshots {
            let metadata = self.catalog.metadata(table).await.ok_or_else(|| format!("no table {table}"))?;
            let built_as = self.catalog.built_as(table).await.unwrap_or_else(|| table.clone());
            let numbers = &self.world.table(&built_as)?.snapshots;
            let name = |number: &Value| {
                let known = numbers.iter().find(|(_, one)| number.as_i64() == Some(**one));
                known.map_or_else(|| number.to_string(), |(name, _)| name.clone())
            };
            let present = metadata["snapshots"].as_array().into_iter().flatten();
            let got: BTreeSet<String> = present.map(|one| name(&one["snapshot-id"])).collect();
            let expected: BTreeSet<String> = ids.iter().cloned().collect();
            if got != expected {
                differ(&format!("snapshots of {table}"), &expected, &got);
            }
        }
        if let Ended::Report(report) = ended {
            for (table, expected) in &expect.findings {
                let got = report.findings.get(table).cloned().unwrap_or_default();
                if got != *expected {
                    differ(&format!("findings of {table}"), expected, &got);
                }
            }
        }
        if expect.exit.is_some_and(|expected| ended.exit_code() != Some(expected)) {
            differ("exit code", &expect.exit, &ended.exit_code());
        }
        let resolved = |ids: &Vec<String>| -> Result<BTreeSet<String>, String> {
            ids.iter().map(|id| self.world.resolve_one(id)).collect()
        };
        let shown = |all: &BTreeSet<String>| all.iter().map(|one| self.world.show(one)).collect::<Vec<_>>();
        if let Some(expected) = &expect.deleted {
            let expected = resolved(expected)?;
            if *removed != expected {
                differ("deleted", &shown(&expected), &shown(removed));
            }
        }
        if let Some(expected) = &expect.deleted_within {
            let expected = resolved(expected)?;
            if !removed.is_subset(&expected) {
                differ("deleted, at most", &shown(&expected), &shown(removed));
            }
        }
        for (name, expected) in expect.counts.named() {
            let got = ended.count(name);
            if got != Some(expected) {
                differ(name, &expected, &got);
            }
        }
        for (reason, expected) in &expect.decisions {
            let got = ended.decided(reason);
            if got != *expected {
                differ(&format!("decisions {reason}"), expected, &got);
            }
        }
        Ok(wrong)
    }

    /// What holds after every step, whatever its author expects.
    async fn compare_with_the_world(
        &self,
        step: &Step,
        ended: &Ended,
        removed: &BTreeSet<String>,
        applied: u64,
        posted: u64,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut present = BTreeSet::new();
        for bucket in self.buckets.values() {
            present.extend(bucket.locations().await);
        }
        for table in &self.world.tables {
            let metadata = self.catalog.metadata_of(&table.name).await.unwrap_or_else(|| table.metadata.clone());
            for snapshot in metadata["snapshots"].as_array().into_iter().flatten() {
                let needs = snapshot["snapshot-id"].as_i64().and_then(|id| table.needs.get(&id));
                let lost =
                    needs.into_iter().flatten().filter(|one| self.seeded.contains(*one) && !present.contains(*one));
                let lost: Vec<String> = lost.map(|one| self.world.show(one)).collect();
                if !lost.is_empty() {
                    wrong.push(format!("DATA LOSS: {} needs {lost:?} for {}", table.name, snapshot["snapshot-id"]));
                }
            }
        }
        let Ended::Report(_) = ended else { return wrong };
        wrong.extend(ended.not_adding_up());
        // A commit of unknown outcome is counted by the run that finds out.
        let so_far = self.scenario.steps.iter().take_while(|one| !std::ptr::eq(*one, step)).chain([step]);
        let commit_faults = so_far.flat_map(|one| &one.faults).any(|fault| fault.on == On::Commit);
        if !commit_faults && (ended.count("commits") != Some(applied) || posted != applied) {
            wrong.push(format!(
                "the report counts {:?} commits, the catalog was sent {posted} and applied {applied}",
                ended.count("commits")
            ));
        }
        if ended.count("deleted_objects") != Some(removed.len() as u64) {
            wrong.push(format!(
                "the report counts {:?} deleted objects, the store lost {}",
                ended.count("deleted_objects"),
                removed.len()
            ));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use icewarden::config::{Config, Sources};

    use super::*;

    #[test]
    fn a_scenarios_configuration_is_merged_over_the_defaults() {
        let text = config(["[expire]\ngrace = \"24h\"\n", ""], "http://127.0.0.1:1", Path::new("/tmp/x"), 2).unwrap();
        let sources =
            Sources { folder: Path::new("/"), env: &|_| None, read: &|_| Err(std::io::ErrorKind::NotFound.into()) };
        let (config, warnings) = Config::parse(&text, "scenario", &sources).unwrap();
        // That the orphan grace of the defaults is below its minimum, which the defaults allow.
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(config.expire.grace.to_string(), "1d");
        assert_eq!((config.expire.older_than.to_string(), config.expire.floor.to_string()), ("5d".into(), "1d".into()));
        assert_eq!(config.state.plans, "file:///tmp/x/plans-2");
    }
}
