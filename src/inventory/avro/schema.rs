//! Compiles the writer's schema, a JSON text in the file's header, into steps: read this value, skip those.
//!
//! A schema is as hostile as the rest of a file. Depth and number of steps are bounded, so a type that holds
//! itself, or doubles at each level, ends in an error.

use std::collections::HashMap;

use serde_json::Value;

/// Iceberg's own schemas have 30 kB; a partition tuple of a thousand fields adds 100 kB.
const MAX_SCHEMA: usize = 1 << 20;
/// Iceberg's own schemas are nested about ten deep, counting unions and arrays.
const MAX_DEPTH: usize = 40;
/// Iceberg's own schemas have about 60 types.
const MAX_TYPES: usize = 100_000;

/// A column to read. Where the schema has field ids, the id decides, else the name.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Iceberg's `field-id`.
    pub id: i64,
    /// Its name, and older names of it.
    pub names: &'static [&'static str],
    /// Whether a schema without it is an error.
    pub is_required: bool,
    /// Where its value goes.
    pub take: Take,
}

/// What is taken of a column.
#[derive(Debug, Clone, Copy)]
pub enum Take {
    /// An `int` or `long`, into this place of [`Row`](super::Row).
    Number(usize),
    /// A `string` or `bytes`, into this place of [`Row`](super::Row).
    Text(usize),
    /// Columns of a record. Records that are not named so are never entered: the names and ids in a
    /// partition tuple are the user's.
    Record(&'static [Column]),
}

/// One step over the bytes of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Skip so many `int`, `long` or `enum`.
    SkipVarints(u64),
    /// Skip a `bytes` or `string`.
    SkipBytes,
    /// Skip so many bytes: `fixed`, `float`, `double`, `boolean`.
    SkipFixed(usize),
    /// An array of records that are `fields` varints each, `{int, long}` above all.
    SkipVarintItems { fields: u64 },
    /// An array of `{varint, bytes}`: the bounds.
    SkipPairItems,
    /// Any other array; a map is an array of name and value.
    SkipItems { item: Box<[Step]>, smallest: u64 },
    /// A union of null and one other type; `null` is the branch number of null, 0 or 1.
    Optional { null: u64, then: Box<[Step]> },
    /// Any other union.
    Union(Box<[Box<[Step]>]>),
    /// Read an `int` or `long`.
    Number(usize),
    /// Read a `bytes` or `string`.
    Text(usize),
}

/// The steps over one row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) steps: Box<[Step]>,
    /// The smallest number of bytes that a row can have.
    pub(super) smallest: u64,
}

/// The steps that read `columns` from rows of `schema`.
pub(super) fn compile(schema: &[u8], columns: &'static [Column]) -> Result<Steps, String> {
    if schema.len() > MAX_SCHEMA {
        return Err(format!("has {} bytes, more than {MAX_SCHEMA}", schema.len()));
    }
    if schema.is_empty() {
        return Err("is missing".to_owned());
    }
    let schema: Value = serde_json::from_slice(schema).map_err(|error| format!("is not JSON: {error}"))?;
    if schema["type"] != "record" {
        return Err("is not that of a record".to_owned());
    }
    let mut compiler = Compiler { named: HashMap::new(), namespace: "", depth: 0, types: 0 };
    let mut steps = Vec::new();
    compiler.type_of(&schema, Wish::Columns(columns), &mut steps)?;
    Ok(Steps { smallest: smallest(&steps), steps: steps.into() })
}

/// What is wanted of the type at hand.
#[derive(Debug, Clone, Copy)]
enum Wish {
    Nothing,
    Number(usize),
    Text(usize),
    Columns(&'static [Column]),
}

impl From<Take> for Wish {
    fn from(take: Take) -> Self {
        match take {
            Take::Number(place) => Self::Number(place),
            Take::Text(place) => Self::Text(place),
            Take::Record(columns) => Self::Columns(columns),
        }
    }
}

struct Compiler<'s> {
    /// Named types by full name, each with the namespace around it.
    named: HashMap<String, (&'s Value, &'s str)>,
    /// The enclosing namespace, empty for none.
    namespace: &'s str,
    depth: usize,
    types: usize,
}

impl<'s> Compiler<'s> {
    fn type_of(&mut self, schema: &'s Value, wish: Wish, steps: &mut Vec<Step>) -> Result<(), String> {
        self.depth += 1;
        self.types += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("is nested deeper than {MAX_DEPTH}, or a type holds itself"));
        }
        if self.types > MAX_TYPES {
            return Err(format!("has more than {MAX_TYPES} types"));
        }
        let name = match schema {
            Value::String(name) => name,
            Value::Array(branches) => {
                self.union(branches, wish, steps)?;
                self.depth -= 1;
                return Ok(());
            }
            Value::Object(object) => match object.get("type") {
                Some(Value::String(name)) => name,
                Some(inner) => {
                    self.type_of(inner, wish, steps)?;
                    self.depth -= 1;
                    return Ok(());
                }
                None => return Err("has a type without \"type\"".to_owned()),
            },
            _ => return Err(format!("has {schema} for a type")),
        };
        self.named_type(name, schema, wish, steps)?;
        self.depth -= 1;
        Ok(())
    }

    fn named_type(
        &mut self,
        name: &'s str,
        schema: &'s Value,
        wish: Wish,
        steps: &mut Vec<Step>,
    ) -> Result<(), String> {
        match (name, wish) {
            ("record" | "error", Wish::Columns(columns)) => self.record(schema, columns, steps),
            ("record" | "error", Wish::Nothing) => self.record(schema, &[], steps),
            ("null", _) => Ok(()),
            ("int" | "long", Wish::Number(place)) => {
                steps.push(Step::Number(place));
                Ok(())
            }
            ("string" | "bytes", Wish::Text(place)) => {
                steps.push(Step::Text(place));
                Ok(())
            }
            (
                "int" | "long" | "string" | "bytes" | "boolean" | "float" | "double" | "fixed" | "enum" | "array"
                | "map" | "record" | "error",
                Wish::Number(_) | Wish::Text(_) | Wish::Columns(_),
            ) => Err(format!("has type {name} for a column that is read as another type")),
            ("int" | "long", Wish::Nothing) => {
                skip_varint(steps);
                Ok(())
            }
            ("string" | "bytes", Wish::Nothing) => {
                steps.push(Step::SkipBytes);
                Ok(())
            }
            ("boolean", Wish::Nothing) => {
                steps.push(Step::SkipFixed(1));
                Ok(())
            }
            ("float", Wish::Nothing) => {
                steps.push(Step::SkipFixed(4));
                Ok(())
            }
            ("double", Wish::Nothing) => {
                steps.push(Step::SkipFixed(8));
                Ok(())
            }
            ("fixed", Wish::Nothing) => {
                self.define(schema)?;
                let size = schema["size"].as_u64().and_then(|size| usize::try_from(size).ok());
                match size.ok_or("has a fixed type without a size")? {
                    0 => {}
                    size => steps.push(Step::SkipFixed(size)),
                }
                Ok(())
            }
            ("enum", Wish::Nothing) => {
                self.define(schema)?;
                skip_varint(steps);
                Ok(())
            }
            ("array", Wish::Nothing) => {
                let mut item = Vec::new();
                let items = schema.get("items").ok_or("has an array without items")?;
                self.type_of(items, Wish::Nothing, &mut item)?;
                steps.push(skip_items(item));
                Ok(())
            }
            ("map", Wish::Nothing) => {
                let mut item = vec![Step::SkipBytes];
                let values = schema.get("values").ok_or("has a map without values")?;
                self.type_of(values, Wish::Nothing, &mut item)?;
                steps.push(skip_items(item));
                Ok(())
            }
            (name, wish) => {
                let full_name = full_name(name, self.namespace);
                let known = self.named.get(&full_name).or_else(|| self.named.get(name));
                let (definition, around) = *known.ok_or_else(|| format!("has the unknown type {name:?}"))?;
                let namespace = std::mem::replace(&mut self.namespace, around);
                self.type_of(definition, wish, steps)?;
                self.namespace = namespace;
                Ok(())
            }
        }
    }

    fn record(&mut self, schema: &'s Value, columns: &'static [Column], steps: &mut Vec<Step>) -> Result<(), String> {
        let inside = self.define(schema)?;
        let namespace = std::mem::replace(&mut self.namespace, inside);
        let fields = schema["fields"].as_array().ok_or("has a record without fields")?;
        let mut found = vec![false; columns.len()];
        for field in fields {
            let name = field["name"].as_str().ok_or("has a field without a name")?;
            let column = columns.iter().position(|column| match field.get("field-id") {
                Some(id) => id.as_i64() == Some(column.id),
                None => column.names.contains(&name),
            });
            let wish = match column {
                Some(index) if found[index] => return Err(format!("has column {name:?} twice")),
                Some(index) => {
                    found[index] = true;
                    columns[index].take.into()
                }
                None => Wish::Nothing,
            };
            let field_type = field.get("type").ok_or("has a field without a type")?;
            self.type_of(field_type, wish, steps).map_err(|reason| within(name, reason))?;
        }
        if let Some((column, _)) = columns.iter().zip(found).find(|(column, found)| column.is_required && !found) {
            return Err(format!("has no column {:?} (field id {})", column.names[0], column.id));
        }
        self.namespace = namespace;
        Ok(())
    }

    fn union(&mut self, branches: &'s [Value], wish: Wish, steps: &mut Vec<Step>) -> Result<(), String> {
        let mut compiled: Vec<Box<[Step]>> = Vec::with_capacity(branches.len());
        for branch in branches {
            let mut steps = Vec::new();
            self.type_of(branch, wish, &mut steps)?;
            compiled.push(steps.into());
        }
        let null = branches.iter().position(|branch| branch == "null");
        steps.push(match (compiled.len(), null) {
            (2, Some(null)) => Step::Optional { null: null as u64, then: compiled.swap_remove(1 - null) },
            _ => Step::Union(compiled.into()),
        });
        Ok(())
    }

    /// Makes a named type known, and returns the namespace of what is inside it.
    fn define(&mut self, schema: &'s Value) -> Result<&'s str, String> {
        let name = schema["name"].as_str().ok_or("has a named type without a name")?;
        let namespace = match (name.rsplit_once('.'), schema["namespace"].as_str()) {
            (Some((namespace, _)), _) | (None, Some(namespace)) => namespace,
            (None, None) => self.namespace,
        };
        let full_name = full_name(name, namespace);
        match self.named.get(&full_name) {
            // A name that is used again leads back to the same place.
            Some((known, _)) if !std::ptr::eq(*known, schema) => Err(format!("defines type {full_name:?} twice")),
            Some(_) => Ok(namespace),
            None => {
                self.named.insert(full_name, (schema, self.namespace));
                Ok(namespace)
            }
        }
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if namespace.is_empty() || name.contains('.') { name.to_owned() } else { format!("{namespace}.{name}") }
}

/// Prefixes where in the schema a reason applies, once.
fn within(field: &str, reason: String) -> String {
    if reason.starts_with("field ") { reason } else { format!("field {field:?} {reason}") }
}

/// Adjacent varints are skipped in one go.
fn skip_varint(steps: &mut Vec<Step>) {
    match steps.last_mut() {
        Some(Step::SkipVarints(count)) => *count += 1,
        _ => steps.push(Step::SkipVarints(1)),
    }
}

fn skip_items(item: Vec<Step>) -> Step {
    match item.as_slice() {
        [Step::SkipVarints(fields)] => Step::SkipVarintItems { fields: *fields },
        [Step::SkipVarints(1), Step::SkipBytes] => Step::SkipPairItems,
        _ => Step::SkipItems { smallest: smallest(&item), item: item.into() },
    }
}

/// The smallest number of bytes that these steps can be made of.
fn smallest(steps: &[Step]) -> u64 {
    steps.iter().fold(0u64, |sum, step| {
        sum.saturating_add(match step {
            Step::SkipVarints(count) => *count,
            Step::SkipFixed(size) => *size as u64,
            _ => 1,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &[Column] = &[Column { id: 100, names: &["path"], is_required: true, take: Take::Text(0) }];
    const COLUMNS: &[Column] = &[
        Column { id: 1, names: &["count", "old_count"], is_required: false, take: Take::Number(0) },
        Column { id: 2, names: &["file"], is_required: true, take: Take::Record(INNER) },
    ];

    fn compiled(fields: &str) -> Result<Vec<Step>, String> {
        let schema = format!(r#"{{"type": "record", "name": "row", "fields": [{fields}]}}"#);
        compile(schema.as_bytes(), COLUMNS).map(|steps| steps.steps.into())
    }

    fn optional(step: Step) -> Step {
        Step::Optional { null: 0, then: Box::new([step]) }
    }

    const FILE: &str = r#"{"name": "file", "field-id": 2, "type": {"type": "record", "name": "r2", "fields": [
        {"name": "path", "field-id": 100, "type": "string"}]}}"#;

    #[test]
    fn columns_are_found_by_id_and_by_name_only_where_there_is_no_id() {
        for (name, field, expected) in [
            ("by id under another name", r#"{"name": "x", "field-id": 1, "type": "int"}"#, Step::Number(0)),
            ("by name", r#"{"name": "count", "type": "long"}"#, Step::Number(0)),
            ("by an old name", r#"{"name": "old_count", "type": ["null", "long"]}"#, optional(Step::Number(0))),
            (
                "null may be the second branch",
                r#"{"name": "count", "type": ["int", "null"]}"#,
                Step::Optional { null: 1, then: Box::new([Step::Number(0)]) },
            ),
            ("another id under that name", r#"{"name": "count", "field-id": 9, "type": "int"}"#, Step::SkipVarints(1)),
            ("an id that is no number", r#"{"name": "count", "field-id": "1", "type": "int"}"#, Step::SkipVarints(1)),
        ] {
            let found = compiled(&format!("{field}, {FILE}"));
            assert_eq!(found, Ok(vec![expected, Step::Text(0)]), "{name}");
        }
    }

    #[test]
    fn a_record_that_is_not_wanted_is_not_entered_whatever_its_fields_are_called() {
        let partition = r#"{"name": "partition", "field-id": 102, "type": {"type": "record", "name": "r102", "fields": [
            {"name": "count", "field-id": 1, "type": "int"},
            {"name": "path", "field-id": 100, "type": ["null", "string"]},
            {"name": "file", "type": "double"}]}}"#;
        let expected = vec![Step::SkipVarints(1), optional(Step::SkipBytes), Step::SkipFixed(8), Step::Text(0)];
        assert_eq!(compiled(&format!("{partition}, {FILE}")), Ok(expected));
    }

    #[test]
    fn every_type_has_its_way_of_being_skipped() {
        let pair = |value: &str| {
            format!(
                r#"{{"type": "array", "logicalType": "map", "items": {{"type": "record", "name": "kv", "fields": [
                {{"name": "key", "type": "int"}}, {{"name": "value", "type": {value}}}]}}}}"#
            )
        };
        let items = |item: Vec<Step>, smallest| Step::SkipItems { item: item.into(), smallest };
        for (schema, expected) in [
            (r#""boolean""#.to_owned(), Some(Step::SkipFixed(1))),
            (r#""float""#.to_owned(), Some(Step::SkipFixed(4))),
            (r#"{"type": "double"}"#.to_owned(), Some(Step::SkipFixed(8))),
            (r#"{"type": {"type": "int", "logicalType": "date"}}"#.to_owned(), Some(Step::SkipVarints(1))),
            (r#"{"type": "fixed", "name": "f", "size": 16}"#.to_owned(), Some(Step::SkipFixed(16))),
            (r#"{"type": "fixed", "name": "f", "size": 0}"#.to_owned(), None),
            (r#"{"type": "enum", "name": "e", "symbols": ["A"]}"#.to_owned(), Some(Step::SkipVarints(1))),
            (r#""null""#.to_owned(), None),
            (r#"{"type": "array", "items": "long"}"#.to_owned(), Some(Step::SkipVarintItems { fields: 1 })),
            (pair(r#""long""#), Some(Step::SkipVarintItems { fields: 2 })),
            (pair(r#""bytes""#), Some(Step::SkipPairItems)),
            (r#"{"type": "array", "items": "null"}"#.to_owned(), Some(items(vec![], 0))),
            (
                r#"{"type": "map", "values": "double"}"#.to_owned(),
                Some(items(vec![Step::SkipBytes, Step::SkipFixed(8)], 9)),
            ),
            (
                r#"["null", "int", "string"]"#.to_owned(),
                Some(Step::Union(Box::new([
                    Box::new([]),
                    Box::new([Step::SkipVarints(1)]),
                    Box::new([Step::SkipBytes]),
                ]))),
            ),
        ] {
            let found = compiled(&format!(r#"{{"name": "other", "type": {schema}}}, {FILE}"#));
            assert_eq!(found, Ok(expected.into_iter().chain([Step::Text(0)]).collect()), "{schema}");
        }
    }

    #[test]
    fn named_types_are_found_in_their_namespace() {
        let fields = r#"
            {"name": "a", "type": {"type": "fixed", "name": "id", "namespace": "x.y", "size": 3}},
            {"name": "b", "type": {"type": "fixed", "name": "id", "size": 5}},
            {"name": "c", "type": {"type": "record", "name": "x.y.r", "fields": [{"name": "d", "type": "id"}]}},
            {"name": "e", "type": "id"}, {"name": "f", "type": "x.y.id"}, {"name": "g", "type": "x.y.r"}"#;
        let sizes = [3, 5, 3, 5, 3, 3].map(Step::SkipFixed).into_iter();
        assert_eq!(compiled(&format!("{fields}, {FILE}")), Ok(sizes.chain([Step::Text(0)]).collect()));
    }

    #[test]
    fn schemas_that_make_no_sense_or_never_end_are_refused() {
        let doubling = (0..38).rev().fold(String::new(), |types, i| {
            let inner = if i == 37 { r#""int""#.to_owned() } else { format!(r#""t{}""#, i + 1) };
            format!(
                r#"{types}{{"name": "f{i}", "type": {{"type": "record", "name": "t{i}", "fields": [
                {{"name": "l", "type": {inner}}}, {{"name": "r", "type": {inner}}}]}}}},"#
            )
        });
        let nested =
            (0..60).fold(r#""int""#.to_owned(), |inner, _| format!(r#"{{"type": "array", "items": {inner}}}"#));
        for (fields, reason) in [
            (r#"{"name": "count", "type": "int"}"#.to_owned(), r#"has no column "file" (field id 2)"#),
            (
                r#"{"name": "file", "type": {"type": "record", "name": "r", "fields": []}}"#.to_owned(),
                r#"field "file" has no column "path" (field id 100)"#,
            ),
            (format!("{FILE}, {FILE}"), r#"has column "file" twice"#),
            (
                format!(
                    r#"{{"name": "old_count", "type": "int"}}, {{"name": "x", "field-id": 1, "type": "int"}}, {FILE}"#
                ),
                r#"has column "x" twice"#,
            ),
            (
                format!(r#"{{"name": "count", "type": "string"}}, {FILE}"#),
                r#"field "count" has type string for a column that is read as another type"#,
            ),
            (
                r#"{"name": "file", "type": "string"}"#.to_owned(),
                r#"field "file" has type string for a column that is read as another type"#,
            ),
            (format!(r#"{{"name": "a", "type": "nowhere"}}, {FILE}"#), r#"field "a" has the unknown type "nowhere""#),
            (format!(r#"{{"name": "a", "type": 7}}, {FILE}"#), r#"field "a" has 7 for a type"#),
            (format!(r#"{{"name": "a", "type": {{}}}}, {FILE}"#), r#"field "a" has a type without "type""#),
            (format!(r#"{{"name": "a"}}, {FILE}"#), "has a field without a type"),
            (format!(r#"{{"type": "int"}}, {FILE}"#), "has a field without a name"),
            (
                format!(r#"{{"name": "a", "type": {{"type": "fixed", "name": "f", "size": -1}}}}, {FILE}"#),
                r#"field "a" has a fixed type without a size"#,
            ),
            (
                format!(r#"{{"name": "a", "type": {{"type": "fixed", "name": "r2", "size": 1}}}}, {FILE}"#),
                r#"field "file" defines type "r2" twice"#,
            ),
            (
                format!(r#"{{"name": "a", "type": ["null", "row"]}}, {FILE}"#),
                r#"field "a" is nested deeper than 40, or a type holds itself"#,
            ),
            (
                format!(r#"{{"name": "a", "type": {nested}}}, {FILE}"#),
                r#"field "a" is nested deeper than 40, or a type holds itself"#,
            ),
            (format!("{doubling}{FILE}"), "has more than 100000 types"),
        ] {
            let error = compiled(&fields).unwrap_err();
            assert!(error.ends_with(reason), "{error:?} where {reason:?} was expected");
        }
        for (schema, reason) in [
            ("", "is missing"),
            ("{", "is not JSON"),
            ("\u{0}", "is not JSON"),
            ("[]", "is not that of a record"),
            (r#"["null"]"#, "is not that of a record"),
            (r#""string""#, "is not that of a record"),
            ("null", "is not that of a record"),
            (r#"{"type": "record", "name": "r"}"#, "has a record without fields"),
            (r#"{"type": "record", "fields": []}"#, "has a named type without a name"),
        ] {
            let error = compile(schema.as_bytes(), COLUMNS).unwrap_err();
            assert!(error.starts_with(reason), "{schema}: {error:?} where {reason:?} was expected");
        }
        let deep_json = "[".repeat(1000);
        assert!(compile(deep_json.as_bytes(), COLUMNS).unwrap_err().starts_with("is not JSON"));
        let large = " ".repeat(MAX_SCHEMA + 1);
        assert!(compile(large.as_bytes(), COLUMNS).unwrap_err().contains("more than"));
    }
}
