//! Icewarden.
pub mod catalog;
pub mod clock;
pub mod config;
pub mod inventory;
pub mod model;
pub mod plan;
pub mod state;
pub mod storage;
pub mod error; pub mod guard; mod failpoint;
