//! Runs every scenario file of `tests/scenarios/` through the real pipeline: see its README.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's world is known")]
#![allow(
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "numbers of a scenario are small"
)]
#![allow(clippy::match_bool, reason = "two forms of one thing read best side by side")]

mod scenario {
    pub(crate) mod avro;
    pub(crate) mod faults;
    pub(crate) mod format;
    pub(crate) mod lake;
    pub(crate) mod rest_server;
    pub(crate) mod store;
    pub(crate) mod updates;
}
