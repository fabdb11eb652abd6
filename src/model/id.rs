//! Names and numbers that identify things, each its own type.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A snapshot's id, as the table metadata has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(pub i64);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The name of a branch or tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(transparent)]
pub struct RefName(String);

impl RefName {
    /// The branch that never expires.
    pub const MAIN: &'static str = "main";

    /// Takes a name as the metadata has it.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the `main` branch.
    pub fn is_main(&self) -> bool {
        self.0 == Self::MAIN
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<&str> for RefName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// A table's place in a configured catalog.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
pub struct TableName {
    /// The name of the `[[catalog]]`.
    pub catalog: String,
    /// Namespace levels, outermost first.
    pub namespace: Vec<String>,
    /// The table's own name.
    pub name: String,
}

impl TableName {
    /// `catalog.namespace.table`, the longer of the two forms that patterns are tried on.
    pub fn full(&self) -> String {
        format!("{}.{self}", self.catalog)
    }
}

/// `namespace.table`, the form that people read and type.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for level in &self.namespace {
            write!(f, "{level}.")?;
        }
        f.write_str(&self.name)
    }
}

/// Names a plan: the first 32 bits of the hash of its header and decisions, shown as `7f3a-11c2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanId([u8; 4]);

impl PlanId {
    /// The id of a plan with this hash.
    pub fn from_hash(hash: &[u8; 32]) -> Self {
        Self([hash[0], hash[1], hash[2], hash[3]])
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u32::from_be_bytes(self.0);
        write!(f, "{:04x}-{:04x}", number >> 16, number & 0xffff)
    }
}

/// The text is not of the form `7f3a-11c2`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no plan id (expected the form 7f3a-11c2)")]
pub struct BadPlanId(String);

impl FromStr for PlanId {
    type Err = BadPlanId;

    fn from_str(text: &str) -> Result<Self, BadPlanId> {
        let bad = || BadPlanId(text.to_owned());
        let (left, right) = text.split_once('-').ok_or_else(bad)?;
        if left.len() != 4 || right.len() != 4 {
            return Err(bad());
        }
        let half = |part: &str| u16::from_str_radix(part, 16).map(u16::to_be_bytes).map_err(|_| bad());
        let ([a, b], [c, d]) = (half(left)?, half(right)?);
        Ok(Self([a, b, c, d]))
    }
}

impl JsonSchema for PlanId {
    fn schema_name() -> Cow<'static, str> {
        "PlanId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Names a plan: `7f3a-11c2`",
            "type": "string",
            "pattern": "^[0-9a-f]{4}-[0-9a-f]{4}$",
        })
    }
}

impl Serialize for PlanId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PlanId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Names a run; sorts by time of start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub String);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_id_reads_back_what_it_shows() {
        let id = PlanId::from_hash(&[0x7f; 32]);
        assert_eq!(id.to_string(), "7f7f-7f7f");
        assert_eq!(id.to_string().parse::<PlanId>().unwrap(), id);
        for bad in ["", "7f7f7f7f", "7f7f-7f7", "7f7f-7f7g", "+f7f-7f7f-", "éé-7f7f"] {
            assert!(bad.parse::<PlanId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_table_is_shown_without_and_with_its_catalog() {
        let name = TableName { catalog: "lake".into(), namespace: vec!["a".into(), "b".into()], name: "t".into() };
        assert_eq!((name.to_string().as_str(), name.full().as_str()), ("a.b.t", "lake.a.b.t"));
    }
}
