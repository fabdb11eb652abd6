//! The `icewarden` command: parse arguments, load the configuration, dispatch, exit code.

use std::process::ExitCode;

use clap::Parser;
use icewarden::cli::{Arguments, dispatch};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    icewarden::telemetry::init(arguments.verbose, arguments.quiet);
    ExitCode::from(dispatch(arguments).await)
}
