//! Icewarden.
pub mod clock;
pub mod config;
pub mod model;
pub mod plan;
pub mod storage;
