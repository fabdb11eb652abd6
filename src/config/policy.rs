//! Which policy applies to which table: the most literal pattern wins, key by key.

use crate::model::{Age, TableName};

/// A name pattern; `*` matches any text, dots included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it matches `namespace.table` or `catalog.namespace.table`.
    pub fn matches_table(&self, _table: &TableName) -> bool {
        false
    }

    /// Whether it matches this text, whole.
    pub fn matches(&self, _text: &str) -> bool {
        false
    }
}

/// One `[[policy]]`.
#[derive(Debug, Clone)]
pub struct Policy {
    /// For which tables.
    pub tables: Vec<Pattern>,
    /// What it says about expiry.
    pub expire: PolicyExpire,
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
