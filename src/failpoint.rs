//! Places where tests stop the program: `ICEWARDEN_FAILPOINTS="after-commit=abort,before-commit=wait:/path"`.
//!
//! In a build without the feature `real-parts` this does nothing at all.

/// Passes the failpoint with this name.
#[cfg(not(feature = "real-parts"))]
#[allow(clippy::unused_async)]
pub(crate) async fn pass(_name: &str) {}

/// Passes the failpoint with this name: `abort` ends the process as a kill does; `wait:PATH` creates
/// `PATH.reached` and goes on when `PATH` exists.
#[cfg(feature = "real-parts")]
#[allow(clippy::disallowed_methods)] // test builds only
pub(crate) async fn pass(name: &str) {
    let Ok(all) = std::env::var("ICEWARDEN_FAILPOINTS") else { return };
    for (point, action) in all.split(',').filter_map(|one| one.split_once('=')) {
        if point != name {
            continue;
        }
        if action == "abort" {
            std::process::abort();
        }
        if let Some(path) = action.strip_prefix("wait:") {
            let reached = tokio::fs::write(format!("{path}.reached"), b"").await;
            while reached.is_ok() && !tokio::fs::try_exists(path).await.unwrap_or(true) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
}

/// How long leases last instead of their real time: none in a build without the feature `real-parts`.
#[cfg(not(feature = "real-parts"))]
pub(crate) fn lease() -> Option<crate::model::Age> {
    None
}

/// How long leases last instead of their real time, which no test can wait for: `ICEWARDEN_LEASE_MS`.
#[cfg(feature = "real-parts")]
#[allow(clippy::disallowed_methods)] // test builds only
pub(crate) fn lease() -> Option<crate::model::Age> {
    std::env::var("ICEWARDEN_LEASE_MS").ok()?.parse().ok().map(crate::model::Age)
}
