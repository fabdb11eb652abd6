//! Icewarden.
pub mod clock;
pub mod config;
pub mod model;
pub mod state;
pub mod storage;
