//! Icewarden.
pub mod failpoint;
pub mod model;
