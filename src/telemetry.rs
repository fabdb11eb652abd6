//! Logs, on stderr: data alone goes to stdout.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `-v` shows what is done, `-vv` how; `-q` errors only. `ICEWARDEN_LOG` overrides all of it.
pub fn init(verbose: u8, quiet: bool) {
    let default = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "warn,icewarden=info",
        (false, _) => "info,icewarden=debug",
    };
    let filter = EnvFilter::try_from_env("ICEWARDEN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start (tests) keeps the first.
    let _ = logs.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init();
}
