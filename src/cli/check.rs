//! `check`: the configuration, then every catalog and table.

use serde_json::json;

use super::print;
use super::text::counted;
use crate::clock::Clock;
use crate::config::{Config, Problem};
use crate::report::{Job, Outcome};
use crate::run::{Lake, RunError, RunRequest, run};

/// The configuration was read without a problem; says so.
pub(super) fn offline(config: &Config, json: bool) -> u8 {
    let (catalogs, policies) = (config.catalogs.len() as u64, config.policies.len() as u64);
    if json {
        print::json(&json!({ "config": config.file, "ok": true, "catalogs": catalogs, "policies": policies }));
    } else {
        let policies = if policies == 1 { "1 policy".to_owned() } else { format!("{policies} policies") };
        print::line(format!("{}: ok, {}, {policies}", config.file, counted(catalogs, "catalog")));
    }
    0
}

/// Opens state, plans store and catalogs, loads every table, and tells which would be skipped and why.
pub(super) async fn online(config: Config, json: bool) -> u8 {
    offline(&config, json);
    let checked = async {
        let lake = Lake::open(config, Clock::System).await?;
        let mut names = Vec::new();
        let mut is_bad = false;
        for catalog in &lake.catalogs {
            match catalog.list_tables().await {
                Ok(tables) => {
                    if json {
                        print::json(&json!({ "catalog": catalog.name(), "ok": true, "tables": tables.len() }));
                    } else {
                        print::line(format!("catalog {}: {}", catalog.name(), counted(tables.len() as u64, "table")));
                    }
                    names.extend(tables.into_iter().map(|table| table.name));
                }
                Err(error) => {
                    is_bad = true;
                    print::error(&error);
                }
            }
        }
        let unmatched = lake.hands.config.unmatched_patterns(&names);
        if !unmatched.is_empty() {
            print::note(Problem::list(&unmatched));
        }
        if is_bad {
            return Ok(1);
        }
        let report = run(&lake, &RunRequest::look(Job::Expire, super::actor())).await?;
        for table in report.tables.iter().filter(|table| table.outcome != Outcome::Done) {
            if json {
                print::json(table);
            } else {
                let reason = table.reason.as_deref().unwrap_or_default();
                print::line(format!("{:<8} {}: {reason}", table.outcome.as_str(), table.table));
            }
        }
        let fine = report.tables.iter().filter(|table| table.outcome == Outcome::Done).count() as u64;
        if !json {
            print::line(format!("{} can be worked on", counted(fine, "table")));
        }
        Ok::<u8, RunError>(report.exit_code())
    };
    match checked.await {
        Ok(code) => code,
        Err(error) => {
            print::error(&error);
            1
        }
    }
}
