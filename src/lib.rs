//! Icewarden.
pub mod catalog;
pub mod clock;
pub mod config;
pub mod model;
pub mod storage;
