//! The command line: what can be typed, and one function for each subcommand.
//!
//! Data goes to stdout, everything else to stderr. `--json` gives the same facts as the text.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};

use crate::check::CheckRequest;
use crate::clock::Clock;
use crate::config::{Config, Pattern, Problem};
use crate::error::Error;
use crate::model::{Age, PlanId, SnapshotId, TableName, Timestamp};
use crate::report::Job;
use crate::run::{self, Lake, RunError, RunRequest};
use crate::state::AuditRow;

mod branch;
mod check;
mod completions;
mod demo;
mod findings;
mod holds;
mod man;
mod marks;
mod orphans;
pub(crate) mod print;
mod progress;
mod refs;
mod runs;
mod schema;
mod storage;
mod tables;
pub(crate) mod text;
mod why;
pub(crate) mod work;

pub use branch::BranchAction;

/// Keeps Apache Iceberg lakes clean where people work on branches.
#[derive(Debug, Parser)]
#[command(name = "icewarden", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    /// The configuration file [default: `ICEWARDEN_CONFIG`, else /etc/icewarden/icewarden.toml]
    #[arg(long, short, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Print JSON: an object a line for lists
    #[arg(long, global = true)]
    pub json: bool,
    /// Log what is done; twice: how
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log errors only
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a demo lake, clean it, and read every file that is left
    Demo(DemoArguments),
    /// Check the configuration, the catalogs, the stores and the tables, and tell what is allowed
    Check {
        /// The configuration only: connect to nothing
        #[arg(long)]
        offline: bool,
        /// Also write a scratch object beside the tables of each store and into the plans store, and delete it again
        #[arg(long, conflicts_with = "offline")]
        write: bool,
    },
    /// List tables
    Tables(Selection),
    /// List branches and tags with their retention
    Refs(Selection),
    /// Tell what the tables' folders hold, by listing them
    Storage(Selection),
    /// List branches, look at one, drop, retain or restore it
    Branch {
        /// What.
        #[command(subcommand)]
        action: BranchAction,
    },
    /// Show what a job would do; changes nothing
    Plan {
        /// The job.
        #[command(subcommand)]
        job: PlanJob,
    },
    /// Run a job; without --apply it only shows its plan
    Run {
        /// The job.
        #[command(subcommand)]
        job: RunJob,
    },
    /// Look at files marked for deletion, and keep some
    Marks {
        /// What.
        #[command(subcommand)]
        action: MarksAction,
    },
    /// Stop commits and deletes: everywhere, in a catalog, or of a table
    Hold {
        /// What.
        #[command(subcommand)]
        action: HoldAction,
    },
    /// Tell what is known about a file: why it was marked, deleted or kept
    Why {
        /// The file's location, as a table or the store has it
        location: String,
    },
    /// List runs, or show one
    Runs {
        /// Show this run
        id: Option<String>,
        /// How many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// List what is wrong, or acknowledge it
    Findings {
        /// What.
        #[command(subcommand)]
        action: Option<FindingsAction>,
    },
    /// Print JSON Schema of what a command prints with --json; without a name, list what there is
    Schema {
        /// Which
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(schema::names()))]
        name: Option<String>,
    },
    /// Print the completions of a shell, to be read by it
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command; without a folder, print the first
    Man {
        /// Where they go, such as /usr/local/share/man/man1
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        folder: Option<PathBuf>,
    },
}

/// Which tables.
#[derive(Debug, Args)]
pub struct Selection {
    /// Only tables that match; `*` matches any text, dots too
    #[arg(long = "table", short, value_name = "PATTERN")]
    pub tables: Vec<String>,
}

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Where the lake is made
    #[arg(long, default_value = "icewarden-demo", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Make it anew
    #[arg(long)]
    pub fresh: bool,
}

/// Jobs that can be planned.
#[derive(Debug, Subcommand)]
pub enum PlanJob {
    /// Expire snapshots and refs
    Expire(ExpireArguments),
    /// Find files that nothing refers to
    Orphans(OrphansArguments),
}

/// Jobs that can be run.
#[derive(Debug, Subcommand)]
pub enum RunJob {
    /// Expire snapshots and refs, and mark the files that only they used
    Expire {
        /// What to expire.
        #[command(flatten)]
        what: ExpireArguments,
        /// Do it
        #[arg(long)]
        apply: bool,
        /// Go on with this plan, which was refused for its size
        #[arg(long, value_name = "PLAN")]
        confirm: Option<PlanId>,
    },
    /// Find files that nothing refers to, by listing the tables' folders, and mark them
    Orphans {
        /// What to look for.
        #[command(flatten)]
        what: OrphansArguments,
        /// Do it
        #[arg(long)]
        apply: bool,
        /// Go on with this plan, which was refused for its size
        #[arg(long, value_name = "PLAN")]
        confirm: Option<PlanId>,
    },
    /// Delete marked files whose grace period is over
    Sweep {
        /// Which tables.
        #[command(flatten)]
        selection: Selection,
        /// Do it
        #[arg(long)]
        apply: bool,
    },
}

/// What to expire.
#[derive(Debug, Args)]
pub struct ExpireArguments {
    /// Which tables.
    #[command(flatten)]
    pub selection: Selection,
    /// Snapshots older than this may go: a duration (5d) or an RFC 3339 time
    #[arg(long, value_name = "AGE", value_parser = cutoff)]
    pub older_than: Option<Cutoff>,
    /// Each branch keeps this many of its newest snapshots
    #[arg(long, value_name = "N")]
    pub retain_last: Option<u32>,
    /// This snapshot goes, whatever its age; repeatable
    #[arg(long = "snapshot", value_name = "ID")]
    pub snapshots: Vec<i64>,
}

/// What to look for.
#[derive(Debug, Args)]
pub struct OrphansArguments {
    /// Which tables.
    #[command(flatten)]
    pub selection: Selection,
    /// Files older than this may go, 24h at least: a duration (5d) or an RFC 3339 time
    #[arg(long, value_name = "AGE", value_parser = cutoff)]
    pub older_than: Option<Cutoff>,
    /// Only what lies in this folder
    #[arg(long, value_name = "FOLDER")]
    pub root: Option<String>,
    /// Tell of every file that nothing refers to why it stays
    #[arg(long)]
    pub reasons: bool,
}

/// A duration, or a point in time.
#[derive(Debug, Clone, Copy)]
pub enum Cutoff {
    /// So old.
    Age(Age),
    /// Since then.
    At(Timestamp),
}

fn cutoff(text: &str) -> Result<Cutoff, String> {
    match text.parse::<Age>() {
        Ok(age) => Ok(Cutoff::Age(age)),
        Err(error) => text.parse::<Timestamp>().map(Cutoff::At).map_err(|_| format!("{error}, nor an RFC 3339 time")),
    }
}

/// `marks`.
#[derive(Debug, Subcommand)]
pub enum MarksAction {
    /// List mark lists
    List {
        /// Which tables.
        #[command(flatten)]
        selection: Selection,
        /// Also those that were swept or void
        #[arg(long)]
        all: bool,
    },
    /// Show the files of a mark list
    Show {
        /// Its id
        id: String,
    },
    /// Keep a file, for all jobs, until it is released
    Keep {
        /// The file's location
        location: String,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Release a file that was kept
    Release {
        /// The file's location
        location: String,
    },
}

/// `hold`.
#[derive(Debug, Subcommand)]
pub enum HoldAction {
    /// List holds
    List,
    /// Put a hold on
    Set {
        /// What is held.
        #[command(flatten)]
        scope: HoldScopeArguments,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Take a hold off
    Release {
        /// What is held.
        #[command(flatten)]
        scope: HoldScopeArguments,
    },
}

/// Which of the three.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct HoldScopeArguments {
    /// Everything
    #[arg(long)]
    pub all: bool,
    /// A catalog
    #[arg(long, value_name = "NAME")]
    pub catalog: Option<String>,
    /// A table: catalog.namespace.table
    #[arg(long, value_name = "NAME")]
    pub table: Option<String>,
}

/// `findings`.
#[derive(Debug, Subcommand)]
pub enum FindingsAction {
    /// Acknowledge a finding until a date
    Ack {
        /// Its id
        id: String,
        /// A date, an RFC 3339 time, or a duration from now
        #[arg(long, value_name = "DATE")]
        until: String,
    },
}

/// Exit code of a bad request or configuration.
const BAD_USAGE: u8 = 2;

/// Does what was asked for, and returns the exit code.
pub async fn dispatch(arguments: Arguments) -> u8 {
    match arguments.command {
        Command::Demo(demo) => demo::command(&demo.folder, demo.fresh).await,
        Command::Schema { name } => schema::command(name.as_deref()),
        Command::Completions { shell } => completions::command(shell),
        Command::Man { folder } => man::command(folder.as_deref()),
        command => {
            let (config, warnings) = match Config::load(&Config::find(arguments.config)) {
                Ok(loaded) => loaded,
                Err(error) => return complain(&error, BAD_USAGE),
            };
            if let Command::Check { offline, write } = command {
                return check::command(&config, &warnings, offline, CheckRequest { write }, arguments.json).await;
            }
            if !warnings.is_empty() {
                print::note(Problem::list(&warnings));
            }
            match with_config(command, config, arguments.json).await {
                Ok(code) => code,
                Err(RunError::Rejected(text)) => complain(&text, BAD_USAGE),
                Err(RunError::Failed(error)) => complain(&error, 1),
            }
        }
    }
}

fn complain(error: &dyn std::fmt::Display, code: u8) -> u8 {
    print::error(error);
    code
}

async fn with_config(command: Command, config: Config, json: bool) -> Result<u8, RunError> {
    // A request that is wrong by itself is told before anything is opened.
    let request = request(&command);
    if let Some(request) = &request {
        run::check(&config, request, Clock::system())?;
    }
    let lake = Lake::open(config, Clock::System).await?;
    if let Some(request) = request {
        return work::run_and_print(&lake, &request, json).await;
    }
    match command {
        // Done before.
        Command::Demo(_)
        | Command::Check { .. }
        | Command::Plan { .. }
        | Command::Run { .. }
        | Command::Schema { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => Ok(0),
        Command::Tables(selection) => tables::list(&lake, &selection.patterns(), json).await,
        Command::Refs(selection) => refs::list(&lake, &selection.patterns(), json).await,
        Command::Storage(selection) => storage::list(&lake, &selection.patterns(), json).await,
        Command::Branch { action } => branch::command(&lake, action, json).await,
        Command::Marks { action } => marks::command(&lake, action, json).await,
        Command::Hold { action } => holds::command(&lake, action, json).await,
        Command::Why { location } => why::command(&lake, &location, json).await,
        Command::Runs { id, limit } => runs::command(&lake, id, limit, json).await,
        Command::Findings { action } => findings::command(&lake, action, json).await,
    }
}

/// The run that a command asks for, if it asks for one.
fn request(command: &Command) -> Option<RunRequest> {
    match command {
        Command::Plan { job: PlanJob::Expire(what) } => Some(what.request(false, None)),
        Command::Run { job: RunJob::Expire { what, apply, confirm } } => Some(what.request(*apply, *confirm)),
        Command::Plan { job: PlanJob::Orphans(what) } => Some(what.request(false, None)),
        Command::Run { job: RunJob::Orphans { what, apply, confirm } } => Some(what.request(*apply, *confirm)),
        Command::Run { job: RunJob::Sweep { selection, apply } } => {
            Some(RunRequest { tables: selection.patterns(), apply: *apply, ..RunRequest::look(Job::Sweep, actor()) })
        }
        _ => None,
    }
}

impl Selection {
    fn patterns(&self) -> Vec<Pattern> {
        self.tables.iter().map(Pattern::new).collect()
    }
}

impl Cutoff {
    /// As a request has it.
    fn split(cutoff: Option<Self>) -> (Option<Age>, Option<Timestamp>) {
        match cutoff {
            Some(Self::Age(age)) => (Some(age), None),
            Some(Self::At(time)) => (None, Some(time)),
            None => (None, None),
        }
    }
}

impl OrphansArguments {
    fn request(&self, apply: bool, confirm: Option<PlanId>) -> RunRequest {
        let (older_than, older_than_time) = Cutoff::split(self.older_than);
        RunRequest {
            tables: self.selection.patterns(),
            older_than,
            older_than_time,
            root: self.root.clone(),
            reasons: self.reasons,
            apply,
            confirm,
            ..RunRequest::look(Job::Orphans, actor())
        }
    }
}

impl ExpireArguments {
    fn request(&self, apply: bool, confirm: Option<PlanId>) -> RunRequest {
        let (older_than, older_than_time) = Cutoff::split(self.older_than);
        RunRequest {
            tables: self.selection.patterns(),
            older_than,
            older_than_time,
            retain_last: self.retain_last,
            snapshots: self.snapshots.iter().copied().map(SnapshotId).collect(),
            apply,
            confirm,
            ..RunRequest::look(Job::Expire, actor())
        }
    }
}

/// Who typed it, for the audit log.
fn actor() -> String {
    format!("cli:{}", crate::config::user())
}

/// An error of the state or of the plans store, as a command's.
fn failed(error: impl Into<Error>) -> RunError {
    RunError::Failed(error.into())
}

/// Notes in the audit log what an operator did beside runs (safety rule 18).
async fn audit(lake: &Lake, action: &str, table: Option<TableName>, detail: serde_json::Value) -> Result<(), RunError> {
    let row = AuditRow {
        at: lake.hands.clock.now(),
        actor: actor(),
        action: action.to_owned(),
        catalog: table.as_ref().map(|table| table.catalog.clone()),
        table,
        plan: None,
        run: None,
        outcome: "done".to_owned(),
        detail: detail.to_string(),
    };
    lake.hands.state.append_audit(&row).await.map_err(failed)
}
