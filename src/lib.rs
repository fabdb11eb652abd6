//! Icewarden.
pub mod apply;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod demo;
pub mod error;
mod failpoint;
pub mod guard;
pub mod inventory;
pub mod model;
pub mod plan;
pub mod report;
pub mod run;
pub mod state;
pub mod storage;
pub mod sweep;
pub mod telemetry;
