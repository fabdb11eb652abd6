//! Icewarden.
pub mod inventory;
pub mod model;
