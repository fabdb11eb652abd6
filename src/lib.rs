//! Icewarden.
pub mod catalog;
pub mod clock;
pub mod config;
pub mod demo;
pub mod model;
pub mod storage;
