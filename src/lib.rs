//! Icewarden keeps Apache Iceberg lakes clean where people work on branches.
//!
//! ```text
//! config → inventory → plan (pure) → guard → apply: commit + mark → sweep → report
//! ```
//!
//! - **[`inventory`]** reads the world: catalogs, table metadata, manifests. It only reads.
//! - **[`plan`]** is pure and synchronous: facts, settings and `now` in, a plan out. Each ref, snapshot and file
//!   gets exactly one decision with a reason. The same input gives the same bytes.
//! - **[`guard`]** turns a plan into a [`guard::ApprovedPlan`], or into a [`guard::Refusal`] that names the rule.
//!   Nothing else can build an approved plan, and `apply` takes nothing else.
//! - **[`apply`]** writes down what it is about to do, commits to the catalog, finds out from the table what became
//!   of the commit, and *marks* files for deletion. It deletes nothing.
//! - **[`sweep`]** is the only code that deletes objects. It takes marks whose grace period is over, proves again,
//!   against the newest metadata, that nothing refers to them, and deletes.
//! - **[`report`]** is the outcome as data; text and JSON are drawn from it.
//!
//! [`run`] is the only place where the stages are joined. There is no dry-run flag: to look is to stop after the
//! plan, to act is to go on with that same plan.
//!
//! Each module uses only what stands above it in the list below. `model`, `plan` and `guard` do no IO and read no
//! clock. `docs/safety.md` has the safety rules that comments cite by number.

pub mod model;

pub mod config;

pub mod clock;
pub mod storage;

mod postgres;

pub mod catalog;
pub mod state;

pub mod inventory;
pub mod plan;

pub mod guard;

pub mod error;
pub mod report;

mod failpoint;

pub mod apply;
pub mod sweep;

pub mod run;

pub mod check;

pub mod demo;

pub mod cli;
pub mod telemetry;
