//! Icewarden.
pub mod model;
