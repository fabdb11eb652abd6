//! The only place that reads clocks. Everything else takes `now` as an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::model::Timestamp;

/// Where `now` comes from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The system's clock.
    System,
    /// A clock that is set by hand, in milliseconds since the epoch: tests and the demo move it.
    Fixed(Arc<AtomicI64>),
}

impl Clock {
    /// The time that plans are made for.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Self::system(),
            Self::Fixed(time) => Timestamp(time.load(Ordering::SeqCst)),
        }
    }

    /// The process's system clock, whatever the plans are made for: this one is compared with the clocks of
    /// stores and databases (safety rule 3).
    #[allow(clippy::disallowed_methods)]
    pub fn system() -> Timestamp {
        chrono::Utc::now().into()
    }

    /// Milliseconds since the machine was started, sleep included. How long a proof or a lease holds is
    /// counted on it, since nobody can set it back.
    pub fn boot_ms() -> u64 {
        let time = clock_gettime(ClockId::Boottime);
        u64::try_from(time.tv_sec).unwrap_or_default() * 1000
            + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000
    }
}
