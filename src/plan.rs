//! Decisions: pure functions of facts, policy and `now`. No IO, no clock, no async.
//!
//! Every snapshot, ref and object gets exactly one decision with a reason that a person understands, and
//! the same input gives the same bytes out.

pub mod change;
pub mod cleanup;
pub mod expire;
pub mod orphans;
pub mod refs;
pub mod retention;
pub mod roots;
pub mod values;

pub use cleanup::{CleanupPlan, KeptFile};
pub use expire::ExpirePlan;
pub use orphans::{KeptObject, OrphansPlan};
pub use refs::{RefDecision, RefFacts, RefValues, RefVerdict};
pub use retention::{ExpiredBecause, RetentionPlan, SnapshotDecision, SnapshotVerdict};
pub use values::{ExpireValues, Source, Sourced};
