//! The real binary on real lakes: written by pyiceberg and by Apache Iceberg Java, served by Iceberg's own REST catalog,
//! compared with Iceberg Java's own expiry and with Spark's orphan removal. `tests/run` fetches these parts and says where they are.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of tests panic, read the environment that tests/run sets, and look at the disk"
)]

mod bad_input;
mod binary;
mod branches;
mod crash;
mod deletes;
mod demo;
mod lake;
mod listing;
mod names;
mod nessie;
mod orphans;
mod orphans_faults;
mod orphans_writer;
mod parity;
mod parts;
mod postgres;
mod race;
mod rest;
mod s3;
mod s3_lake;
mod seaweedfs;
