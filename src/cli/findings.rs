//! `findings`: what is wrong, and who knows of it.

use chrono::NaiveDate;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::text::minute;
use super::{FindingsAction, failed, print};
use crate::model::{Age, RefName, TableName, Timestamp};
use crate::run::{Lake, RunError};
use crate::state::{FindingKind, Severity};

/// A finding, as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line<'a> {
    /// For `icewarden findings ack`.
    id: &'a str,
    kind: FindingKind,
    severity: Severity,
    table: &'a TableName,
    uuid: Option<Uuid>,
    /// The branch or tag that it is about, if it is about one.
    #[serde(rename = "ref")]
    ref_name: Option<&'a RefName>,
    message: &'a str,
    advice: &'a str,
    /// By the kind.
    numbers: &'a Value,
    first_seen: Timestamp,
    last_seen: Timestamp,
    acknowledged_until: Option<Timestamp>,
    acknowledged_by: Option<&'a str>,
}

/// Does what was asked for.
pub(super) async fn command(lake: &Lake, action: Option<FindingsAction>, json: bool) -> Result<u8, RunError> {
    let now = lake.hands.clock.now();
    match action {
        None => list(lake, now, json).await,
        Some(FindingsAction::Ack { id, until }) => {
            let until = date(&until, now)
                .ok_or_else(|| RunError::Rejected(format!("{until:?} is no date, RFC 3339 time or duration")))?;
            if until <= now {
                return Err(RunError::Rejected("--until lies in the past".to_owned()));
            }
            if !lake.hands.state.acknowledge(&id, until, &super::actor()).await.map_err(failed)? {
                return Err(RunError::Rejected(format!("no open finding {id:?} (hint: icewarden findings)")));
            }
            super::audit(lake, "acknowledge", None, json!({ "finding": id, "until": until })).await?;
            print::line(format!("{id} is acknowledged until {}", minute(until)));
            Ok(0)
        }
    }
}

fn date(text: &str, now: Timestamp) -> Option<Timestamp> {
    let day = || {
        let date: NaiveDate = text.parse().ok()?;
        Some(Timestamp(date.and_hms_opt(0, 0, 0)?.and_utc().timestamp_millis()))
    };
    text.parse::<Timestamp>().ok().or_else(day).or_else(|| text.parse::<Age>().ok().map(|age| now.plus(age)))
}

async fn list(lake: &Lake, now: Timestamp, json: bool) -> Result<u8, RunError> {
    let findings = lake.hands.state.open_findings().await.map_err(failed)?;
    if findings.is_empty() && !json {
        print::line("nothing is wrong");
    }
    for finding in &findings {
        let seen = &finding.seen;
        if json {
            print::json(&Line {
                id: &finding.id,
                kind: seen.kind,
                severity: seen.severity,
                table: &seen.table,
                uuid: seen.uuid,
                ref_name: seen.ref_name.as_ref(),
                message: &seen.message,
                advice: &seen.advice,
                numbers: &seen.numbers,
                first_seen: finding.first_seen,
                last_seen: finding.last_seen,
                acknowledged_until: finding.acknowledged_until,
                acknowledged_by: finding.acknowledged_by.as_deref(),
            });
            continue;
        }
        let known = match finding.acknowledged_until {
            Some(until) if until > now => format!("   (acknowledged until {})", minute(until)),
            _ => String::new(),
        };
        print::line(format!("{}  {:<8} {}: {}{known}", finding.id, seen.severity.as_str(), seen.kind, seen.message));
        print::line(format!("          seen since {}; {}", minute(finding.first_seen), seen.advice));
    }
    Ok(0)
}
