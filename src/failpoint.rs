//! Named places in a run at which a test stops the process, or holds it while the world changes (a race, `kill -9`).
//!
//! Built only with the feature `real-parts`; without it, `reached` is empty. `ICEWARDEN_FAILPOINT=NAME` chooses one
//! place: when it is first reached, the process writes `failpoint NAME` to stderr and blocks until a line, or the end,
//! of stdin. Places: `after-load` (tables loaded, nothing planned), `after-intent` (the intent is durable, nothing
//! committed), `after-commit` (committed, nothing marked), `after-mark` (marked, nothing deleted), `mid-sweep` (one
//! object deleted, more to go), `after-sweep` (all deleted, nothing of it recorded).

/// Says that the run is at this place.
#[cfg(not(feature = "real-parts"))]
pub fn reached(_place: &str) {}

/// Says that the run is at this place.
#[cfg(feature = "real-parts")]
#[expect(clippy::disallowed_methods, clippy::print_stderr, reason = "for tests only; no configuration names a failpoint")]
pub fn reached(place: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var("ICEWARDEN_FAILPOINT").is_ok_and(|chosen| chosen == place) {
        ONCE.call_once(|| {
            eprintln!("failpoint {place}");
            // A line and the end of stdin both let the run go on, so that no test can leave it blocked.
            let _line = std::io::stdin().read_line(&mut String::new());
        });
    }
}
