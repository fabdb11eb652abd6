//! `[[policy]]` and `[[schedule]]`: what holds for which tables, and when.

use chrono_tz::{TZ_VARIANTS, Tz};
use toml::Spanned;
use uuid::Uuid;

use super::warn_below_floor;
use crate::config::raw::{Section, closest, did_you_mean};
use crate::config::{
    Exclusive, Mode, OnPrClosed, Pattern, Policy, PolicyExpire, Position, RefRule, ScheduleConfig, cron,
};
use crate::model::{Age, RefKind};

pub(super) fn policies(root: &Section<'_>, floor: Age) -> Vec<Policy> {
    let sections = root.sections("policy").unwrap_or_default();
    sections.into_iter().map(|section| policy(section, floor)).collect()
}

fn policy(section: Section<'_>, floor: Age) -> Policy {
    let (tables, at) = tables(&section).unwrap_or_else(|| {
        if !section.has("tables") {
            section.missing("tables", "patterns such as [\"sales.*\"]");
        }
        (Vec::new(), section.reader().position(&section.at))
    });
    let policy = Policy {
        tables,
        at,
        refs: rules(&section, "refs", RefKind::Branch),
        expire: expire(section.section("expire"), floor),
        tags: rules(&section, "tags", RefKind::Tag),
        mode: section.choice("mode", &[("observe", Mode::Observe), ("mark", Mode::Mark), ("sweep", Mode::Sweep)]),
        exclusive: exclusive(section.section("exclusive")),
    };
    section.close();
    policy
}

/// Patterns of tables; at least one.
fn tables(section: &Section<'_>) -> Option<(Vec<Pattern>, Position)> {
    let texts = section.texts("tables")?;
    let reader = section.reader();
    let at = texts.span();
    let patterns: Vec<Pattern> = texts.into_inner().into_iter().map(|text| Pattern::new(text.value)).collect();
    if patterns.is_empty() {
        reader.error_with_hint(&at, "tables names no table", "[\"*\"] names all");
    }
    Some((patterns, reader.position(&at)))
}

fn expire(section: Section<'_>, floor: Age) -> PolicyExpire {
    let older_than = section.age("older_than");
    if let Some(age) = &older_than {
        warn_below_floor(section.reader(), &age.span(), *age.get_ref(), floor);
    }
    let expire = PolicyExpire {
        older_than: older_than.map(Spanned::into_inner),
        retain_last: section.number("retain_last", 1.., "1 or more"),
        override_table: section.boolean("override_table"),
    };
    section.close();
    expire
}

fn rules(section: &Section<'_>, key: &str, kind: RefKind) -> Option<Vec<RefRule>> {
    let sections = section.sections(key)?;
    Some(sections.into_iter().filter_map(|section| rule(section, kind)).collect())
}

fn rule(section: Section<'_>, kind: RefKind) -> Option<RefRule> {
    let name = section.text("name");
    if !section.has("name") {
        section.missing("name", "a pattern such as \"pr_*\"");
    }
    let actions = [("keep", OnPrClosed::Keep), ("report", OnPrClosed::Report), ("drop", OnPrClosed::Drop)];
    let age = |key| section.age(key).map(Spanned::into_inner);
    let is_branch = kind == RefKind::Branch;
    if is_branch && let Some(value) = section.value("on_pr_closed") {
        section.reader().warning(
            &value.span(),
            "on_pr_closed comes with a later version: in this one no pull request is looked at",
            "max_age and max_lifetime count already",
        );
    }
    // Made even without a name, so that its other keys are checked.
    let has_name = name.is_some();
    let rule = RefRule {
        name: Pattern::new(name.map(|name| name.value).unwrap_or_default()),
        max_age: age("max_age"),
        max_lifetime: age("max_lifetime"),
        on_pr_closed: if is_branch { section.choice("on_pr_closed", &actions) } else { None },
        protected: section.boolean("protected"),
        retain_last: if is_branch { section.number("retain_last", 1.., "1 or more") } else { None },
        set_retention: section.boolean("set_retention"),
    };
    section.close();
    has_name.then_some(rule)
}

fn exclusive(section: Section<'_>) -> Option<Exclusive> {
    let uuids = section.texts("uuids").map(Spanned::into_inner);
    let reason = section.text("reason");
    if section.is_present() {
        if !section.has("reason") {
            section.missing("reason", "why the table's folders are its own, for the audit log");
        }
        if !section.has("uuids") {
            section.missing("uuids", "the table-uuids of the tables that share its folders");
        }
    }
    let uuids: Option<Vec<Uuid>> = uuids.map(|texts| {
        let read = texts.into_iter().filter_map(|text| {
            let uuid = Uuid::parse_str(&text.value).ok();
            if uuid.is_none() {
                section.reader().error(&text.at, format!("{}: not a uuid", text.shown()));
            }
            uuid
        });
        read.collect()
    });
    section.close();
    Some(Exclusive { uuids: uuids?, reason: reason?.value })
}

pub(super) fn schedules(root: &Section<'_>) -> Vec<ScheduleConfig> {
    let sections = root.sections("schedule").unwrap_or_default();
    sections.into_iter().filter_map(schedule).collect()
}

fn schedule(section: Section<'_>) -> Option<ScheduleConfig> {
    let reader = section.reader();
    let jobs = ["expire", "orphans", "inventory", "sweep", "reconcile"].map(|job| (job, job));
    let job = section.choice("job", &jobs);
    if !section.has("job") {
        section.missing("job", "expire, orphans, inventory, sweep or reconcile");
    }
    let cron = section.text("cron");
    if let Some(text) = &cron
        && let Err(why) = cron::check(&text.value)
    {
        // What is wrong may quote a part of the value, which is the file's own only without a variable.
        let why = if text.has_variable() { "not a cron line of five fields".to_owned() } else { why };
        reader.error(&text.at, format!("{}: {why}", text.shown()));
    }
    if !section.has("cron") {
        section.missing("cron", "five fields such as \"0 3 * * *\"");
    }
    let time_zone = section.text("time_zone").map_or(Some(Tz::UTC), |text| {
        let zone = text.value.parse().ok();
        if zone.is_none() {
            let close = closest(text.raw(), TZ_VARIANTS.iter().map(|zone| zone.name()));
            let close = did_you_mean(close.map(|close| format!("{close:?}")).as_deref());
            reader.error(&text.at, format!("{}: not a time zone such as \"Europe/Berlin\"{close}", text.shown()));
        }
        zone
    });
    let (tables, at) = tables(&section).unwrap_or_else(|| (vec![Pattern::new("*")], reader.position(&section.at)));
    section.close();
    Some(ScheduleConfig { job: job?.to_owned(), cron: cron?.value, time_zone: time_zone?, tables, at })
}
