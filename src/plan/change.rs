//! Changes of refs alone, asked for by an operator or by a policy's `set_retention`: no snapshot goes with them.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::config::RefRules;
use crate::model::lineage::Lineage;
use crate::model::{
    Age, DropEnd, DroppedRef, Ref, RefKind, RefName, Retention, SnapshotId, TableName, TableState, Timestamp,
};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// A branch goes; its snapshots stay for the drop grace.
    Drop,
    /// A branch gets these settings; those that are `None` stay as they are.
    Retain(Retention),
    /// A ref that is gone is set again, under this name if not under its own.
    Restore(Option<RefName>),
    /// A policy writes retention to refs.
    SetRetention,
}

impl Wanted {
    /// One word, for the audit log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Retain(_) => "retain",
            Self::Restore(_) => "restore",
            Self::SetRetention => "set_retention",
        }
    }
}

/// Refs of a table, before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefChange {
    /// Which table.
    pub table: TableName,
    /// Its uuid.
    pub uuid: Uuid,
    /// What was asked for.
    pub wanted: Wanted,
    /// What changes; never nothing.
    pub refs: Vec<ChangedRef>,
}

/// A ref, before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChangedRef {
    /// Its name.
    pub name: RefName,
    /// `None`: it is not there yet.
    pub before: Option<Ref>,
    /// `None`: it goes.
    pub after: Option<Ref>,
}

impl RefChange {
    /// Whether the table is as the change would leave it. A branch may have moved on since.
    pub fn is_done(&self, state: &TableState) -> bool {
        let lineage = Lineage::new(&state.snapshots);
        self.refs.iter().all(|changed| match (&changed.after, state.refs.get(&changed.name)) {
            (None, found) => found.is_none(),
            (Some(wanted), Some(found)) => {
                found.kind == wanted.kind
                    && found.retention == wanted.retention
                    && lineage.descends(found.snapshot, wanted.snapshot)
            }
            (Some(_), None) => false,
        })
    }

    /// The names of the refs that go.
    pub fn dropped(&self) -> impl Iterator<Item = &RefName> {
        self.refs.iter().filter(|changed| changed.after.is_none()).map(|changed| &changed.name)
    }

    /// The names of the refs that are set.
    pub fn set(&self) -> impl Iterator<Item = &RefName> {
        self.refs.iter().filter(|changed| changed.after.is_some()).map(|changed| &changed.name)
    }
}

/// Why a branch is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is none of that name.
    #[error("it has no branch {0}")]
    Unknown(RefName),
    /// It is a tag.
    #[error("{0} is a tag, not a branch")]
    IsTag(RefName),
    /// It is `main`.
    #[error("main is never dropped")]
    IsMain,
    /// A policy protects it.
    #[error("policy {policy} protects {rule}")]
    Protected {
        /// The pattern of the policy's `tables`.
        policy: String,
        /// The pattern of the rule's `name`.
        rule: String,
    },
    /// It has what is asked for.
    #[error("branch {0} has that retention already")]
    AsWanted(RefName),
    /// It would go at once.
    #[error("its head is {} old: with an age of {} the next expiry drops it (to drop it: icewarden branch drop)", age.show(), limit.show())]
    AlreadyOver {
        /// Of its head.
        age: Age,
        /// Asked for.
        limit: Age,
    },
    /// Another branch of that name is there now.
    #[error("{0} is another branch than the one that was shown: somebody has set it anew meanwhile")]
    Replaced(RefName),
    /// A setting that Iceberg does not take.
    #[error("retention must be greater than zero")]
    BadRetention,
    /// A ref of that name is there.
    #[error("{0} is there; restore the dropped one under another name with --as NAME")]
    IsThere(RefName),
    /// It was never seen to go.
    #[error("no branch {0} is known to have been dropped")]
    NeverDropped(RefName),
    /// What it pointed at was expired.
    #[error("{name} pointed at snapshot {snapshot}, which the table no longer has")]
    Expired {
        /// Which ref.
        name: RefName,
        /// What it pointed at.
        snapshot: SnapshotId,
    },
}

/// The branch goes.
pub fn drop(state: &TableState, name: &RefName, rules: &RefRules) -> Result<ChangedRef, Refused> {
    if name.is_main() {
        return Err(Refused::IsMain);
    }
    let r = branch(state, name)?;
    if let Some(by) = rules.protecting(r.kind, name) {
        return Err(Refused::Protected { policy: by.pattern.to_string(), rule: by.value.to_string() });
    }
    Ok(ChangedRef { name: name.clone(), before: Some(r.clone()), after: None })
}

/// The branch gets these settings.
pub fn retain(state: &TableState, name: &RefName, settings: Retention, now: Timestamp) -> Result<ChangedRef, Refused> {
    let r = branch(state, name)?;
    let Retention { min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms } = settings;
    if [min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms].into_iter().flatten().any(|value| value <= 0) {
        return Err(Refused::BadRetention);
    }
    let retention = Retention {
        min_snapshots_to_keep: min_snapshots_to_keep.or(r.retention.min_snapshots_to_keep),
        max_snapshot_age_ms: max_snapshot_age_ms.or(r.retention.max_snapshot_age_ms),
        max_ref_age_ms: max_ref_age_ms.or(r.retention.max_ref_age_ms),
    };
    if retention == r.retention {
        return Err(Refused::AsWanted(name.clone()));
    }
    let head = state.snapshots.iter().find(|snapshot| snapshot.id == r.snapshot);
    if let (Some(limit), Some(head)) = (max_ref_age_ms.map(Age), head)
        && now.since(head.at) > limit
        && !name.is_main()
    {
        return Err(Refused::AlreadyOver { age: now.since(head.at), limit });
    }
    let after = Ref { retention, ..r.clone() };
    Ok(ChangedRef { name: name.clone(), before: Some(r.clone()), after: Some(after) })
}

/// The ref of this name that was dropped last is set again, where it pointed and with the retention that it had.
/// `dropped` is in the order in which that was seen.
pub fn restore(
    state: &TableState,
    name: &RefName,
    new_name: Option<&RefName>,
    dropped: &[DroppedRef],
) -> Result<ChangedRef, Refused> {
    let new_name = new_name.unwrap_or(name);
    let Some(dropped) = dropped.iter().rev().find(|dropped| dropped.name == *name) else {
        return Err(Refused::NeverDropped(name.clone()));
    };
    if state.refs.contains_key(new_name) {
        return Err(Refused::IsThere(new_name.clone()));
    }
    let snapshot = dropped.r.snapshot;
    // Of a snapshot that was expired once, and came back with older metadata, the files may be gone.
    let is_expired = matches!(dropped.ended, Some((DropEnd::Expired, _)));
    if is_expired || !state.snapshots.iter().any(|found| found.id == snapshot) {
        return Err(Refused::Expired { name: name.clone(), snapshot });
    }
    // A lenient writer may have written what no server takes.
    let sound = |setting: Option<i64>| setting.filter(|value| *value > 0);
    let Retention { min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms } = dropped.r.retention;
    let retention = Retention {
        min_snapshots_to_keep: sound(min_snapshots_to_keep),
        max_snapshot_age_ms: sound(max_snapshot_age_ms),
        max_ref_age_ms: sound(max_ref_age_ms),
    };
    let after = Ref { retention, ..dropped.r.clone() };
    Ok(ChangedRef { name: new_name.clone(), before: None, after: Some(after) })
}

fn branch<'a>(state: &'a TableState, name: &RefName) -> Result<&'a Ref, Refused> {
    match state.refs.get(name) {
        None => Err(Refused::Unknown(name.clone())),
        Some(r) if r.kind == RefKind::Tag => Err(Refused::IsTag(name.clone())),
        Some(r) => Ok(r),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::policy::Sourced;
    use crate::config::{Pattern, RefRule};
    use crate::model::table::tests::empty_table;
    use crate::model::{ManifestSource, Snapshot};

    fn r(snapshot: i64, kind: RefKind, age: Option<i64>) -> Ref {
        let retention = Retention { max_ref_age_ms: age, ..Retention::default() };
        Ref { snapshot: SnapshotId(snapshot), kind, retention }
    }

    fn table() -> TableState {
        let snapshots = (1..4).map(|id| Snapshot {
            id: SnapshotId(id),
            parent: None,
            at: Timestamp(0),
            sequence_number: 0,
            manifests: ManifestSource::Inline(Vec::new()),
            summary: std::collections::BTreeMap::new(),
        });
        let refs = [
            ("main", r(3, RefKind::Branch, None)),
            ("pr_1", r(2, RefKind::Branch, Some(7))),
            ("audit", r(2, RefKind::Branch, None)),
            ("v1", r(1, RefKind::Tag, None)),
        ];
        let refs = refs.into_iter().map(|(name, r)| (name.into(), r)).collect();
        TableState { snapshots: snapshots.collect(), refs, ..empty_table() }
    }

    fn dropped(name: &str, snapshot: i64) -> DroppedRef {
        let r = r(snapshot, RefKind::Branch, Some(snapshot));
        DroppedRef { name: name.into(), r, fork_point: None, at: Timestamp(0), by: None, is_seen: true, ended: None }
    }

    #[test]
    fn a_branch_is_dropped_unless_it_is_main_a_tag_or_protected() {
        let rule = RefRule {
            name: Pattern::new("aud*"),
            max_age: None,
            max_lifetime: None,
            on_pr_closed: None,
            protected: Some(true),
            retain_last: None,
            set_retention: None,
        };
        let list = Sourced { value: vec![rule], pattern: Pattern::new("db.*") };
        let rules = RefRules { refs: vec![list], tags: Vec::new() };
        let of = |name: &str| drop(&table(), &name.into(), &rules).map(|changed| (changed.before, changed.after));
        assert_eq!(of("pr_1"), Ok((Some(r(2, RefKind::Branch, Some(7))), None)));
        assert_eq!(of("main"), Err(Refused::IsMain));
        assert_eq!(of("v1"), Err(Refused::IsTag("v1".into())));
        assert_eq!(of("none"), Err(Refused::Unknown("none".into())));
        assert_eq!(of("audit"), Err(Refused::Protected { policy: "db.*".into(), rule: "aud*".into() }));
    }

    #[test]
    fn retention_is_set_name_by_name_and_only_where_it_differs() {
        let of =
            |name: &str, settings| retain(&table(), &name.into(), settings, Timestamp(8)).map(|changed| changed.after);
        let keep = Retention { min_snapshots_to_keep: Some(2), ..Retention::default() };
        let expected = Ref { retention: Retention { max_ref_age_ms: Some(7), ..keep }, ..r(2, RefKind::Branch, None) };
        assert_eq!(of("pr_1", keep), Ok(Some(expected)));
        let age = |ms| Retention { max_ref_age_ms: Some(ms), ..Retention::default() };
        assert_eq!(of("pr_1", age(7)), Err(Refused::AsWanted("pr_1".into())));
        assert_eq!(of("pr_1", age(0)), Err(Refused::BadRetention));
        assert_eq!(of("pr_1", age(6)), Err(Refused::AlreadyOver { age: Age(8), limit: Age(6) }));
        assert!(of("pr_1", age(8)).is_ok(), "one exactly at its age stays");
        assert_eq!(of("v1", age(1)), Err(Refused::IsTag("v1".into())));
        assert!(of("main", keep).is_ok(), "main may keep more");
    }

    #[test]
    fn the_ref_that_was_dropped_last_is_set_again_where_its_snapshot_is_there() {
        let ended = Some((DropEnd::Expired, Timestamp(0)));
        let expired = DroppedRef { ended, ..dropped("expired", 3) };
        let all = [dropped("old", 1), dropped("old", 3), dropped("lost", 99), dropped("pr_1", 3), expired];
        let of = |name: &str, new: Option<&str>| {
            let new = new.map(RefName::from);
            restore(&table(), &name.into(), new.as_ref(), &all).map(|changed| (changed.name.to_string(), changed.after))
        };
        assert_eq!(of("old", None), Ok(("old".to_owned(), Some(r(3, RefKind::Branch, Some(3))))));
        assert_eq!(of("pr_1", None), Err(Refused::IsThere("pr_1".into())));
        assert_eq!(of("pr_1", Some("pr_2")), Ok(("pr_2".to_owned(), Some(r(3, RefKind::Branch, Some(3))))));
        assert_eq!(of("old", Some("main")), Err(Refused::IsThere("main".into())));
        assert_eq!(of("lost", None), Err(Refused::Expired { name: "lost".into(), snapshot: SnapshotId(99) }));
        assert_eq!(of("expired", None), Err(Refused::Expired { name: "expired".into(), snapshot: SnapshotId(3) }));
        assert_eq!(of("never", None), Err(Refused::NeverDropped("never".into())));
    }

    #[test]
    fn a_change_is_done_where_the_table_shows_all_of_it() {
        let change = |name: &str, after: Option<Ref>| RefChange {
            table: TableName { catalog: "c".into(), namespace: vec![], name: "t".into() },
            uuid: Uuid::nil(),
            wanted: Wanted::Drop,
            refs: vec![ChangedRef { name: name.into(), before: None, after }],
        };
        let of = |name: &str, after| change(name, after).is_done(&table());
        assert!(of("none", None) && !of("pr_1", None));
        assert!(of("pr_1", Some(r(2, RefKind::Branch, Some(7)))));
        assert!(!of("pr_1", Some(r(2, RefKind::Branch, None))), "another retention");
        assert!(!of("pr_1", Some(r(3, RefKind::Branch, Some(7)))), "somebody else's, of the same name");
        assert!(!of("pr_1", Some(r(2, RefKind::Tag, Some(7)))));
    }
}
