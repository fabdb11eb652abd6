//! Icewarden.
pub mod clock;
pub mod config;
pub mod demo;
pub mod model;
pub mod storage;
