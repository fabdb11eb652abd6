//! Findings: what is wrong with a table, from when it is first seen until it is seen no more.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::{State, StateError, UnknownWord, hex, json, namespace, parsed, table, time, time_or_none, uuid_or_none};
use crate::model::{Fingerprint, RefName, TableName, Timestamp};

/// Files that a finding names, of those that it is about.
const EXAMPLES: usize = 1000;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A commit of ours removed other things than its plan (safety rule 10).
    UnplannedRemoval,
    /// What a commit of ours was based on cannot be read any more (safety rule 10).
    NoPredecessor,
    /// Two tables share a folder or a uuid (safety rule 6).
    SharedLocation,
    /// A file of the table cannot be read (safety rule 2).
    UnreadableTable,
    /// The table forbids maintenance (safety rule 4).
    GcDisabled,
    /// The table's metadata has no uuid (safety rule 6).
    NoUuid,
    /// A mark list was void: wrong checksum, or another line of the table (safety rule 16).
    MarksVoid,
    /// A ref lost its own retention while its head moved: some writers leave it out.
    RetentionLost,
    /// A file that a snapshot needs is not there (safety rule 7).
    MissingFile,
    /// A metadata file of the table belongs to another line than its log's: it was restored, or two catalogs write.
    ForkedLineage,
    /// A data or metadata path of the table may hold other things than its files (safety rule 6).
    NotExclusive,
    /// A folder in the table's own holds nothing of it (safety rule 6).
    ForeignFolder,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::UnplannedRemoval,
        Self::NoPredecessor,
        Self::SharedLocation,
        Self::UnreadableTable,
        Self::GcDisabled,
        Self::NoUuid,
        Self::MarksVoid,
        Self::RetentionLost,
        Self::MissingFile,
        Self::ForkedLineage,
        Self::NotExclusive,
        Self::ForeignFolder,
    ];

    /// The word in the database, in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnplannedRemoval => "unplanned_removal",
            Self::NoPredecessor => "no_predecessor",
            Self::SharedLocation => "shared_location",
            Self::UnreadableTable => "unreadable_table",
            Self::GcDisabled => "gc_disabled",
            Self::NoUuid => "no_uuid",
            Self::MarksVoid => "marks_void",
            Self::RetentionLost => "retention_lost",
            Self::MissingFile => "missing_file",
            Self::ForkedLineage => "forked_lineage",
            Self::NotExclusive => "not_exclusive",
            Self::ForeignFolder => "foreign_folder",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FindingKind {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word)
            .ok_or_else(|| UnknownWord(word.to_owned(), "kind of finding"))
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Somebody should look at it this week.
    Warning,
    /// Somebody should look at it now.
    Critical,
}

impl Severity {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl FromStr for Severity {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        [Self::Info, Self::Warning, Self::Critical]
            .into_iter()
            .find(|severity| severity.as_str() == word)
            .ok_or_else(|| UnknownWord(word.to_owned(), "severity"))
    }
}

/// A finding as it is seen now.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// What is wrong.
    pub kind: FindingKind,
    /// With which table.
    pub table: TableName,
    /// The table's uuid, where it is known; a renamed table keeps its findings.
    pub uuid: Option<Uuid>,
    /// With which ref; `None` for the table as a whole.
    pub ref_name: Option<RefName>,
    /// How bad it is.
    pub severity: Severity,
    /// Numbers for programs.
    pub numbers: serde_json::Value,
    /// What is wrong, for people: one sentence that names the table and the file.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

impl Observation {
    /// What the finding is about. Twins share a uuid, and each has its own finding about that.
    fn subject(&self) -> String {
        match self.uuid {
            Some(uuid) if self.kind != FindingKind::SharedLocation => uuid.to_string(),
            _ => json(&self.table),
        }
    }

    fn ref_text(&self) -> &str {
        self.ref_name.as_ref().map_or("", RefName::as_str)
    }

    /// Short and stable: made of what the finding is about. `length` hex digits, 64 at most.
    pub(super) fn id(&self, length: usize) -> String {
        let key = format!("{}\n{}\n{}", self.kind, self.subject(), self.ref_text());
        format!("f-{}", &hex(&Sha256::digest(key))[..length])
    }
}

/// A finding. There is one for each kind, table (by uuid; by name where that is unknown or shared) and ref.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Short and stable, `f-3a9c12`.
    pub id: String,
    /// What was seen last.
    pub seen: Observation,
    /// When it was first seen; after it was resolved and came back, when it came back.
    pub first_seen: Timestamp,
    /// When it was last seen.
    pub last_seen: Timestamp,
    /// Until when nobody needs to be told.
    pub acknowledged_until: Option<Timestamp>,
    /// Who said so.
    pub acknowledged_by: Option<String>,
    /// When it was resolved.
    pub closed_at: Option<Timestamp>,
}

impl Finding {
    /// Whether somebody has said that they know.
    pub fn is_acknowledged(&self, now: Timestamp) -> bool {
        self.acknowledged_until.is_some_and(|until| now < until)
    }
}

impl State {
    /// Notes that something is wrong, and returns the finding's id. Seen again, an open finding keeps its id,
    /// its first time and its acknowledgement; a resolved one opens anew.
    pub async fn raise(&self, seen: &Observation, now: Timestamp) -> Result<String, StateError> {
        let doing = "note a finding";
        let mut transaction = self.write(doing).await?;
        let known = sqlx::query("SELECT id FROM findings WHERE kind = $1 AND subject = $2 AND ref_name = $3")
            .bind(seen.kind.as_str())
            .bind(seen.subject())
            .bind(seen.ref_text())
            .fetch_optional(&mut *transaction)
            .await
            .and_then(|row| row.map(|row| row.try_get::<String, _>("id")).transpose())
            .map_err(self.failed(doing))?;
        let id = if let Some(id) = known {
            id
        } else {
            // Six digits are nice to type, and soon taken where findings are many.
            let mut id = seen.id(64);
            for length in [6, 8, 12, 16] {
                let taken = sqlx::query("SELECT id FROM findings WHERE id = $1")
                    .bind(seen.id(length))
                    .fetch_optional(&mut *transaction)
                    .await
                    .map_err(self.failed(doing))?;
                if taken.is_none() {
                    id = seen.id(length);
                    break;
                }
            }
            id
        };
        sqlx::query(
            "INSERT INTO findings
                 (id, kind, subject, ref_name, catalog, namespace, table_name, uuid, severity, numbers, message,
                  advice, first_seen, last_seen)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)
             ON CONFLICT (kind, subject, ref_name) DO UPDATE
             SET catalog = excluded.catalog, namespace = excluded.namespace, table_name = excluded.table_name,
                 uuid = excluded.uuid, severity = excluded.severity, numbers = excluded.numbers, message = excluded.message,
                 advice = excluded.advice, last_seen = excluded.last_seen,
                 first_seen = CASE WHEN findings.closed_at IS NULL THEN findings.first_seen
                                   ELSE excluded.first_seen END,
                 acknowledged_until = CASE WHEN findings.closed_at IS NULL THEN findings.acknowledged_until END,
                 acknowledged_by = CASE WHEN findings.closed_at IS NULL THEN findings.acknowledged_by END,
                 closed_at = NULL",
        )
        .bind(id.as_str())
        .bind(seen.kind.as_str())
        .bind(seen.subject())
        .bind(seen.ref_text())
        .bind(seen.table.catalog.as_str())
        .bind(namespace(&seen.table))
        .bind(seen.table.name.as_str())
        .bind(seen.uuid.map(|uuid| uuid.to_string()))
        .bind(seen.severity.as_str())
        .bind(json(&seen.numbers))
        .bind(seen.message.as_str())
        .bind(seen.advice.as_str())
        .bind(now.0)
        .execute(&mut *transaction)
        .await
        .map_err(self.failed(doing))?;
        transaction.commit().await.map_err(self.failed(doing))?;
        Ok(id)
    }

    /// Notes that something is wrong with these files of a table, and tells whether somebody has said that they know of
    /// all of them: what was said of others does not hold for them.
    pub async fn raise_named(&self, seen: Observation, names: &[String], now: Timestamp) -> Result<bool, StateError> {
        let open = match seen.uuid {
            Some(uuid) => self.open_findings_of(uuid).await?,
            None => Vec::new(),
        };
        let known = open.iter().find(|finding| finding.seen.kind == seen.kind && finding.is_acknowledged(now));
        let all = format!("{:032x}", Fingerprint::of(&names.join("\n")).bits());
        let is_known = known.is_some_and(|finding| {
            let numbers = &finding.seen.numbers;
            let examples = numbers["examples"].as_array().into_iter().flatten();
            let examples: BTreeSet<&str> = examples.filter_map(serde_json::Value::as_str).collect();
            numbers["all"] == all.as_str() || names.iter().all(|name| examples.contains(name.as_str()))
        });
        if let (Some(finding), false) = (known, is_known) {
            self.resolve(&finding.id, now).await?;
        }
        let examples: Vec<&String> = names.iter().take(EXAMPLES).collect();
        let numbers = serde_json::json!({ "files": names.len(), "all": all, "examples": examples });
        self.raise(&Observation { numbers, ..seen }, now).await?;
        Ok(is_known)
    }

    /// Closes an open finding that is no more. Tells whether there was one.
    pub async fn resolve(&self, id: &str, now: Timestamp) -> Result<bool, StateError> {
        sqlx::query("UPDATE findings SET closed_at = $2 WHERE id = $1 AND closed_at IS NULL")
            .bind(id)
            .bind(now.0)
            .execute(&self.pool)
            .await
            .map(|done| done.rows_affected() == 1)
            .map_err(self.failed("close a finding"))
    }

    /// Closes the open findings of this kind about this table, of all its refs, whether they were raised by its
    /// uuid or, before that was known, by its name. Returns how many.
    pub async fn resolve_kind(
        &self,
        kind: FindingKind,
        table: &TableName,
        uuid: Option<Uuid>,
        now: Timestamp,
    ) -> Result<u64, StateError> {
        sqlx::query(
            "UPDATE findings SET closed_at = $4
             WHERE kind = $1 AND (subject = $2 OR subject = $3) AND closed_at IS NULL",
        )
        .bind(kind.as_str())
        .bind(json(table))
        .bind(uuid.map(|uuid| uuid.to_string()))
        .bind(now.0)
        .execute(&self.pool)
        .await
        .map(|done| done.rows_affected())
        .map_err(self.failed("close findings"))
    }

    /// All open findings, acknowledged ones too; the oldest first.
    pub async fn open_findings(&self) -> Result<Vec<Finding>, StateError> {
        let rows = sqlx::query("SELECT * FROM findings WHERE closed_at IS NULL ORDER BY first_seen, id")
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(Finding::from_row).collect());
        rows.map_err(self.failed("read the findings"))
    }

    /// The open findings about the table with this uuid, acknowledged ones too.
    pub async fn open_findings_of(&self, uuid: Uuid) -> Result<Vec<Finding>, StateError> {
        let rows = sqlx::query("SELECT * FROM findings WHERE uuid = $1 AND closed_at IS NULL ORDER BY first_seen, id")
            .bind(uuid.to_string())
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(Finding::from_row).collect());
        rows.map_err(self.failed("read the findings"))
    }

    /// Notes that somebody knows of an open finding. Tells whether there was one.
    pub async fn acknowledge(&self, id: &str, until: Timestamp, by: &str) -> Result<bool, StateError> {
        sqlx::query(
            "UPDATE findings SET acknowledged_until = $2, acknowledged_by = $3 WHERE id = $1 AND closed_at IS NULL",
        )
        .bind(id)
        .bind(until.0)
        .bind(by)
        .execute(&self.pool)
        .await
        .map(|done| done.rows_affected() == 1)
        .map_err(self.failed("acknowledge a finding"))
    }
}

impl Finding {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let ref_name: String = row.try_get("ref_name")?;
        Ok(Self {
            id: row.try_get("id")?,
            seen: Observation {
                kind: parsed(row, "kind")?,
                table: table(row)?,
                uuid: uuid_or_none(row, "uuid")?,
                ref_name: Some(ref_name).filter(|name| !name.is_empty()).map(RefName::new),
                severity: parsed(row, "severity")?,
                numbers: super::from_json(row, "numbers")?,
                message: row.try_get("message")?,
                advice: row.try_get("advice")?,
            },
            first_seen: time(row, "first_seen")?,
            last_seen: time(row, "last_seen")?,
            acknowledged_until: time_or_none(row, "acknowledged_until")?,
            acknowledged_by: row.try_get("acknowledged_by")?,
            closed_at: time_or_none(row, "closed_at")?,
        })
    }
}
