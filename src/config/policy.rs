//! Which policy applies to which table and ref: key by key the most literal pattern wins; between equally
//! literal ones the safer value does, the one that keeps more.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::problem::Position;
use crate::model::{Age, RefKind, RefName, TableName};

/// A name pattern; `*` matches any text, dots included.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches `namespace.table` or `catalog.namespace.table`.
    pub fn matches_table(&self, table: &TableName) -> bool {
        self.matches(&table.to_string()) || self.matches(&table.full())
    }

    /// Whether it matches this text, whole.
    pub fn matches(&self, text: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return self.0 == text };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = text.strip_prefix(start).and_then(|text| text.strip_suffix(end));
        // The earliest place of each part leaves the most room for the next.
        inner.is_some_and(|inner| {
            middle.split('*').try_fold(inner, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..])).is_some()
        })
    }

    /// How many of its characters stand for themselves.
    pub fn literal_count(&self) -> usize {
        self.0.chars().filter(|c| *c != '*').count()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One `[[policy]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// For which tables.
    pub tables: Vec<Pattern>,
    /// Where the file says `tables`.
    pub at: Position,
    /// What it says about branches, if it says anything; the first rule that matches a name counts.
    pub refs: Option<Vec<RefRule>>,
    /// What it says about expiry.
    pub expire: PolicyExpire,
    /// What it says about tags; the first rule that matches a name counts.
    pub tags: Option<Vec<RefRule>>,
    /// How far jobs go that no operator started.
    pub mode: Option<Mode>,
    /// Overrides the finding that another table shares the roots.
    pub exclusive: Option<Exclusive>,
}

/// A policy's `expire = { … }`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyExpire {
    /// Snapshots older than this may go.
    pub older_than: Option<Age>,
    /// A branch keeps this many.
    pub retain_last: Option<u32>,
    /// The policy wins even where it keeps less than the table's own properties say.
    pub override_table: Option<bool>,
}

/// A rule for the branches, or the tags, of one name pattern. A key that is not there says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefRule {
    /// For which refs.
    pub name: Pattern,
    /// A ref older than this is dropped.
    pub max_age: Option<Age>,
    /// A ref that was created longer ago than this is dropped.
    pub max_lifetime: Option<Age>,
    /// Branches only: what the close of its pull request means.
    pub on_pr_closed: Option<OnPrClosed>,
    /// Never dropped by an expiry, whatever its age.
    pub protected: Option<bool>,
    /// Branches only: snapshots to keep.
    pub retain_last: Option<u32>,
    /// Writes the retention to a ref that has none.
    pub set_retention: Option<bool>,
}

/// What the close of a pull request means for its branch; from safest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPrClosed {
    /// Nothing.
    Keep,
    /// A finding.
    Report,
    /// The branch is dropped.
    Drop,
}

/// How far scheduled, webhook and reconcile jobs go; from safest on. A run that an operator starts with
/// `--apply` is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They only plan.
    Observe,
    /// They commit and mark.
    Mark,
    /// They delete too.
    Sweep,
}

/// A promise that the table's folders are its own, though they look shared (safety rule 6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exclusive {
    /// The tables that are really this one, or gone.
    pub uuids: Vec<Uuid>,
    /// For the audit log.
    pub reason: String,
}

/// A value and the pattern that it came by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Of the policy's `tables`, the one that matched.
    pub pattern: Pattern,
}

/// What the policies say about one table; `None` where none says anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EffectivePolicy {
    /// About expiry.
    pub expire: EffectiveExpire,
    /// How far jobs go that no operator started; [`EffectivePolicy::mode`] adds the default.
    pub mode: Option<Sourced<Mode>>,
    /// That the table's folders are its own.
    pub exclusive: Option<Sourced<Exclusive>>,
    /// About single refs.
    pub rules: RefRules,
}

/// The rules for the refs of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefRules {
    /// The lists of rules for branches: one, or several of equally literal patterns.
    pub refs: Vec<Sourced<Vec<RefRule>>>,
    /// The lists of rules for tags, likewise.
    pub tags: Vec<Sourced<Vec<RefRule>>>,
}

/// What the policies say about one table's expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EffectiveExpire {
    /// Snapshots older than this may go.
    pub older_than: Option<Sourced<Age>>,
    /// A branch keeps this many.
    pub retain_last: Option<Sourced<u32>>,
    /// The policy wins even where it keeps less than the table's own properties say.
    pub override_table: Option<Sourced<bool>>,
}

impl EffectivePolicy {
    pub(super) fn of(policies: &[Policy], table: &TableName) -> Self {
        let matching: Vec<(&Policy, &Pattern)> = policies
            .iter()
            .filter_map(|policy| {
                let patterns = policy.tables.iter().filter(|pattern| pattern.matches_table(table));
                Some((policy, patterns.max_by_key(|pattern| pattern.literal_count())?))
            })
            .collect();
        Self {
            expire: EffectiveExpire {
                older_than: winner(&matching, |policy| policy.expire.older_than, Ord::max),
                retain_last: winner(&matching, |policy| policy.expire.retain_last, Ord::max),
                override_table: winner(&matching, |policy| policy.expire.override_table, Ord::min),
            },
            mode: winner(&matching, |policy| policy.mode, Ord::min),
            exclusive: winner(&matching, |policy| policy.exclusive.clone(), |left, right| left.in_both(&right)),
            rules: RefRules {
                refs: most_literal(&matching, |policy| policy.refs.clone()),
                tags: most_literal(&matching, |policy| policy.tags.clone()),
            },
        }
    }

    /// How far jobs go that no operator started: the policies' word, else all the way.
    pub fn mode(&self) -> Mode {
        self.mode.as_ref().map_or(Mode::Sweep, |mode| mode.value)
    }
}

impl RefRules {
    /// The rule for a ref of this name. In each list the first match counts; of several lists of equally
    /// literal patterns the safer value counts, key by key.
    pub fn rule_for(&self, kind: RefKind, name: &RefName) -> Option<Sourced<RefRule>> {
        let firsts = self.firsts(kind, name).map(|(first, pattern)| Sourced { value: first.clone(), pattern });
        firsts.reduce(|left, right| Sourced { value: left.value.safer(&right.value), pattern: left.pattern })
    }

    /// The rule that protects a ref of this name, if one does, with the pattern of its policy.
    pub fn protecting(&self, kind: RefKind, name: &RefName) -> Option<Sourced<Pattern>> {
        let (rule, pattern) = self.firsts(kind, name).find(|(first, _)| first.protected == Some(true))?;
        Some(Sourced { value: rule.name.clone(), pattern })
    }

    /// Of each list the first rule that matches, with the pattern of its policy.
    fn firsts(&self, kind: RefKind, name: &RefName) -> impl Iterator<Item = (&RefRule, Pattern)> {
        let lists = match kind {
            RefKind::Branch => &self.refs,
            RefKind::Tag => &self.tags,
        };
        lists.iter().filter_map(|list| {
            let first = list.value.iter().find(|rule| rule.name.matches(name.as_str()))?;
            Some((first, list.pattern.clone()))
        })
    }
}

/// The values of the most literal patterns among the policies that have one.
fn most_literal<T>(matching: &[(&Policy, &Pattern)], value: impl Fn(&Policy) -> Option<T>) -> Vec<Sourced<T>> {
    let mut best = Vec::new();
    let mut literals = 0;
    for (policy, pattern) in matching {
        let (Some(value), count) = (value(policy), pattern.literal_count()) else { continue };
        if count > literals {
            best.clear();
            literals = count;
        }
        if count == literals {
            best.push(Sourced { value, pattern: (*pattern).clone() });
        }
    }
    best
}

/// The value of the most literal pattern; the safer one of several.
fn winner<T: Clone + PartialEq>(
    matching: &[(&Policy, &Pattern)],
    value: impl Fn(&Policy) -> Option<T>,
    safer: impl Fn(T, T) -> T,
) -> Option<Sourced<T>> {
    most_literal(matching, value).into_iter().reduce(|left, right| {
        let value = safer(left.value.clone(), right.value.clone());
        let pattern = if value == left.value { left.pattern } else { right.pattern };
        Sourced { value, pattern }
    })
}

/// The safer of two values, the one there is if there is one.
fn both<T>(left: Option<T>, right: Option<T>, safer: impl Fn(T, T) -> T) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(safer(left, right)),
        (left, right) => left.or(right),
    }
}

impl RefRule {
    /// Of two rules for one ref, what keeps more, key by key.
    fn safer(self, other: &Self) -> Self {
        Self {
            name: self.name,
            max_age: both(self.max_age, other.max_age, Ord::max),
            max_lifetime: both(self.max_lifetime, other.max_lifetime, Ord::max),
            on_pr_closed: both(self.on_pr_closed, other.on_pr_closed, Ord::min),
            protected: both(self.protected, other.protected, Ord::max),
            retain_last: both(self.retain_last, other.retain_last, Ord::max),
            set_retention: both(self.set_retention, other.set_retention, Ord::min),
        }
    }
}

impl Exclusive {
    /// Only what two promises have in common.
    fn in_both(self, other: &Self) -> Self {
        let uuids = self.uuids.into_iter().filter(|uuid| other.uuids.contains(uuid)).collect();
        Self { uuids, reason: self.reason }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(catalog: &str, name: &str) -> TableName {
        let mut levels: Vec<String> = name.split('.').map(str::to_owned).collect();
        let name = levels.pop().unwrap();
        TableName { catalog: catalog.to_owned(), namespace: levels, name }
    }

    fn policy(tables: &[&str]) -> Policy {
        Policy {
            tables: tables.iter().copied().map(Pattern::new).collect(),
            at: Position { line: 1, column: 1 },
            refs: None,
            expire: PolicyExpire::default(),
            tags: None,
            mode: None,
            exclusive: None,
        }
    }

    fn expire(tables: &[&str], older_than: Option<i64>, retain_last: Option<u32>, is_override: Option<bool>) -> Policy {
        let older_than = older_than.map(Age::days);
        Policy { expire: PolicyExpire { older_than, retain_last, override_table: is_override }, ..policy(tables) }
    }

    fn rule(name: &str, max_age: Option<i64>) -> RefRule {
        RefRule {
            name: Pattern::new(name),
            max_age: max_age.map(Age::days),
            max_lifetime: None,
            on_pr_closed: None,
            protected: None,
            retain_last: None,
            set_retention: None,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "compared with optional values")]
    fn sourced<T>(value: T, pattern: &str) -> Option<Sourced<T>> {
        Some(Sourced { value, pattern: Pattern::new(pattern) })
    }

    #[test]
    fn a_star_matches_any_text_with_its_dots() {
        for (pattern, text, is_match) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.b", "xa.b", false),
            ("a.*", "a.b.c", true),
            ("a.*", "a.", true),
            ("a.*", "ab.c", false),
            ("*", "", true),
            ("*.orders", "x.y.orders", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("*ab*ab*", "xabab", true),
            ("*ab*ab*", "xabb", false),
            ("a**b", "ab", true),
            ("a*b*c", "aXbYbZc", true),
            ("A", "a", false),
            ("", "", true),
            ("", "a", false),
            ("?", "a", false),
            ("é*", "éa", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_is_tried_with_and_without_the_catalog() {
        let orders = table("lake", "sales.eu.orders");
        for (pattern, is_match) in [
            ("sales.*", true),
            ("lake.sales.*", true),
            ("lake.*", true),
            ("other.sales.*", false),
            ("*.orders", true),
            ("orders", false),
            ("sales.eu.orders", true),
            ("lake.sales.eu.orders", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches_table(&orders), is_match, "{pattern}");
        }
    }

    #[test]
    fn the_most_literal_pattern_wins_key_by_key() {
        let policies = [
            expire(&["*"], Some(30), Some(1), Some(true)),
            expire(&["sales.*", "x"], Some(1), None, None),
            expire(&["sales.orders", "*"], None, Some(7), None),
            expire(&["lake.sales.*"], Some(2), None, None),
        ];
        let of = |name: &str| EffectivePolicy::of(&policies, &table("lake", name)).expire;
        assert_eq!(
            of("sales.orders"),
            EffectiveExpire {
                older_than: sourced(Age::days(2), "lake.sales.*"),
                retain_last: sourced(7, "sales.orders"),
                override_table: sourced(true, "*"),
            }
        );
        // Two policies say `*` of this one: of their values the one that keeps more.
        assert_eq!(
            of("hr.pay"),
            EffectiveExpire {
                older_than: sourced(Age::days(30), "*"),
                retain_last: sourced(7, "*"),
                override_table: sourced(true, "*"),
            }
        );
        assert_eq!(EffectivePolicy::of(&[], &table("lake", "a.b")), EffectivePolicy::default());
    }

    #[test]
    fn between_equally_literal_patterns_the_safer_value_wins() {
        let uuids: Vec<Uuid> = (1..4).map(Uuid::from_u128).collect();
        let exclusive = |range: &[Uuid]| Some(Exclusive { uuids: range.to_vec(), reason: "moved".to_owned() });
        let left = Policy {
            mode: Some(Mode::Sweep),
            exclusive: exclusive(&uuids[..2]),
            ..expire(&["a.b*"], Some(1), Some(9), Some(true))
        };
        let right = Policy {
            mode: Some(Mode::Observe),
            exclusive: exclusive(&uuids[1..]),
            ..expire(&["a.*b"], Some(3), Some(2), Some(false))
        };
        for policies in [[left.clone(), right.clone()], [right, left]] {
            let effective = EffectivePolicy::of(&policies, &table("lake", "a.bb"));
            assert_eq!(effective.expire.older_than, sourced(Age::days(3), "a.*b"));
            assert_eq!(effective.expire.retain_last, sourced(9, "a.b*"));
            assert_eq!(effective.expire.override_table, sourced(false, "a.*b"));
            assert_eq!(effective.mode, sourced(Mode::Observe, "a.*b"));
            assert_eq!(effective.exclusive.unwrap().value.uuids, uuids[1..2]);
        }
    }

    #[test]
    fn jobs_go_all_the_way_where_no_policy_says_otherwise() {
        assert_eq!(EffectivePolicy::default().mode(), Mode::Sweep);
        let watched = Policy { mode: Some(Mode::Mark), ..policy(&["*"]) };
        assert_eq!(EffectivePolicy::of(&[watched], &table("lake", "a.b")).mode(), Mode::Mark);
    }

    #[test]
    fn the_first_rule_of_the_most_literal_list_counts() {
        let general =
            Policy { refs: Some(vec![rule("*", Some(1))]), tags: Some(vec![rule("*", Some(2))]), ..policy(&["*"]) };
        let special =
            Policy { refs: Some(vec![rule("pr_1*", Some(5)), rule("pr_*", Some(3))]), ..policy(&["sales.*"]) };
        let effective = EffectivePolicy::of(&[general, special], &table("lake", "sales.orders"));
        let of = |kind, name: &str| {
            let rule = effective.rules.rule_for(kind, &name.into())?;
            Some((rule.value.max_age.unwrap(), rule.pattern.to_string()))
        };
        assert_eq!(of(RefKind::Branch, "pr_12"), Some((Age::days(5), "sales.*".to_owned())));
        assert_eq!(of(RefKind::Branch, "pr_2"), Some((Age::days(3), "sales.*".to_owned())));
        // The list is one key: a name that it does not match has no rule, and is kept.
        assert_eq!(of(RefKind::Branch, "dev_2"), None);
        assert_eq!(of(RefKind::Tag, "pr_12"), Some((Age::days(2), "*".to_owned())));
    }

    #[test]
    fn of_two_equally_literal_lists_the_safer_value_counts_key_by_key() {
        let left = RefRule {
            on_pr_closed: Some(OnPrClosed::Drop),
            protected: Some(false),
            retain_last: Some(2),
            set_retention: Some(true),
            ..rule("pr_*", Some(3))
        };
        let right = RefRule {
            on_pr_closed: Some(OnPrClosed::Report),
            protected: Some(true),
            max_lifetime: Some(Age::days(9)),
            set_retention: Some(false),
            ..rule("*", Some(7))
        };
        let lists = [left, right].map(|rule| Policy { refs: Some(vec![rule]), ..policy(&["sales.*"]) });
        let effective = EffectivePolicy::of(&lists, &table("lake", "sales.orders"));
        let expected = RefRule {
            name: Pattern::new("pr_*"),
            max_age: Some(Age::days(7)),
            max_lifetime: Some(Age::days(9)),
            on_pr_closed: Some(OnPrClosed::Report),
            protected: Some(true),
            retain_last: Some(2),
            set_retention: Some(false),
        };
        assert_eq!(effective.rules.rule_for(RefKind::Branch, &"pr_1".into()), sourced(expected, "sales.*"));
        // Protected by the second list: its own name pattern is told.
        let protecting = |kind| effective.rules.protecting(kind, &"pr_1".into());
        assert_eq!(protecting(RefKind::Branch), sourced(Pattern::new("*"), "sales.*"));
        assert_eq!(protecting(RefKind::Tag), None);
    }

    /// By definition: each star tried at every length.
    fn brute(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|at| brute(rest, &text[at..])),
            Some((first, rest)) => text.split_first().is_some_and(|(c, text)| c == first && brute(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn matching_is_what_the_star_means(pattern in "[ab*.]{0,7}", text in "[ab.]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(Pattern::new(pattern.clone()).matches(&text), brute(&chars(&pattern), &chars(&text)));
        }

        #[test]
        fn each_key_comes_from_the_most_literal_policies_and_keeps_most(
            policies in proptest::collection::vec(
                (proptest::sample::select(vec!["*", "a.*", "a.b", "*.b", "c.*", "c.a.b", "x"]),
                 proptest::option::of(1_i64..5), proptest::option::of(1_u32..5)),
                0..6,
            ),
        ) {
            let table = table("c", "a.b");
            let all: Vec<Policy> =
                policies.iter().map(|(pattern, age, last)| expire(&[pattern], *age, *last, None)).collect();
            let effective = EffectivePolicy::of(&all, &table).expire;
            let matching = || policies.iter().filter(|(pattern, ..)| Pattern::new(*pattern).matches_table(&table));
            let literals = |pattern: &str| Pattern::new(pattern).literal_count();
            let ages = matching().filter_map(|(pattern, age, _)| Some((literals(pattern), Age::days((*age)?))));
            let lasts = matching().filter_map(|(pattern, _, last)| Some((literals(pattern), (*last)?)));
            prop_assert_eq!(effective.older_than.map(|age| age.value), ages.max().map(|(_, age)| age));
            prop_assert_eq!(effective.retain_last.map(|last| last.value), lasts.max().map(|(_, last)| last));
        }
    }
}
