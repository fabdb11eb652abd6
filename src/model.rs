//! Facts as plain types: ids, times, locations, tables. No IO, no clock, no async.
//!
//! Everything that a plan decides on is one of these types, so that a plan is a function of values
//! that can be written down in a test.

pub mod file;
pub mod id;
pub mod lineage;
pub mod location;
pub mod roots;
pub mod sighting;
pub mod table;
pub mod time;

pub use file::{Candidate, Content, FileKind, ObjectFacts, Tally};
pub use id::{PlanId, RefName, RunId, SnapshotId, TableName};
pub use location::{BadLocation, Fingerprint, Location, LocationRules, Root, Unrepresentable};
pub use roots::TableRoots;
pub use sighting::{Creation, DropEnd, DroppedRef, RefMemory, Sighting};
pub use table::{ManifestSource, MetadataLogEntry, Ref, RefKind, Retention, Snapshot, StatisticsFile, TableState};
pub use time::{Age, Timestamp};
