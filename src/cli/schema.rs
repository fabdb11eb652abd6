//! `schema`: JSON Schema of what each command prints with `--json`, from the types that are printed.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::print;
use super::text::{left, table};
use crate::check::CheckItem;
use crate::report::RunReport;
use crate::state::{Entry, Hold};

/// What one command prints.
struct Shape {
    /// The name to ask for it by.
    name: &'static str,
    /// The commands that print it.
    commands: &'static str,
    /// Whether it is one object for all, or an object a line.
    is_list: bool,
    schema: fn() -> Schema,
}

const SHAPES: [Shape; 12] = [
    Shape { name: "branches", commands: "branch list, inspect", is_list: true, schema: of::<super::branch::Line<'_>> },
    Shape { name: "check", commands: "check", is_list: true, schema: of::<CheckItem> },
    Shape { name: "findings", commands: "findings", is_list: true, schema: of::<super::findings::Line<'_>> },
    Shape { name: "holds", commands: "hold list", is_list: true, schema: of::<Hold> },
    Shape { name: "mark-lists", commands: "marks list", is_list: true, schema: of::<super::marks::Line<'_>> },
    Shape { name: "marks", commands: "marks show", is_list: true, schema: of::<Entry> },
    Shape { name: "refs", commands: "refs", is_list: true, schema: of::<super::refs::Line<'_>> },
    Shape { name: "run", commands: "plan, run, branch drop, retain, restore", is_list: false, schema: of::<RunReport> },
    Shape { name: "runs", commands: "runs", is_list: true, schema: of::<super::runs::Line<'_>> },
    Shape { name: "storage", commands: "storage", is_list: true, schema: of::<super::storage::Line> },
    Shape { name: "tables", commands: "tables", is_list: true, schema: of::<super::tables::Line> },
    Shape { name: "why", commands: "why", is_list: true, schema: of::<super::why::Fact> },
];

/// Prints one schema or, without a name, what there is. Returns the exit code.
pub(super) fn command(name: Option<&str>) -> u8 {
    let Some(name) = name else {
        let columns = [left("SCHEMA", 0), left("PRINTED WITH --json BY", 0), left("FORM", 1)];
        let form = |shape: &Shape| if shape.is_list { "an object a line" } else { "one object" };
        let rows: Vec<Vec<String>> = SHAPES
            .iter()
            .map(|shape| vec![shape.name.to_owned(), shape.commands.to_owned(), form(shape).to_owned()])
            .collect();
        table(&columns, &rows).iter().for_each(print::line);
        return 0;
    };
    let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
        print::error(&format!("no schema is called {name:?} (hint: icewarden schema)"));
        return super::BAD_USAGE;
    };
    match serde_json::to_string_pretty(&(shape.schema)()) {
        Ok(text) => {
            print::line(text);
            0
        }
        Err(error) => {
            print::error(&error);
            1
        }
    }
}

/// The names that can be asked for.
pub(super) fn names() -> [&'static str; SHAPES.len()] {
    SHAPES.map(|shape| shape.name)
}

fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}
