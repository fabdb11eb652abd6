//! What a table's files say: manifest lists and manifests, read by our own skipping Avro reader.
//!
//! This module only reads. What it cannot read whole and certain it reports as unreadable, and the table
//! is left alone (safety rule 2).

pub mod avro;
pub mod borders;
pub mod created;
pub mod dropped;
pub mod found;
pub mod keys;
pub mod loose;
pub mod manifests;
pub mod reach;
pub mod referenced;
pub mod spill;
pub mod usage;
pub mod world;
