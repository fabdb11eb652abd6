//! Bad input and a bad machine: a message that names table and file, the documented exit code, nothing deleted, and the
//! other tables done.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::{Answer, Paused, icewarden};
use crate::lake::{Lake, Table};
use crate::parts;

const EXPIRE: &str = "run expire --older-than 5d --apply --json";
const SWEEP: &str = "run sweep --apply --json";
/// The tables with something to expire.
const TABLES: [&str; 5] = ["ops.events", "ops.v1table", "ops.wap", "sales.customers", "sales.orders"];

fn files_of(lake: &Lake, table: &str) -> BTreeSet<String> {
    let folder = format!("{}/", table.replace('.', "/"));
    lake.all_files().into_iter().filter(|file| file.starts_with(&folder)).collect()
}

fn name_of(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

fn truncate(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

/// A manifest that the current snapshot of the table added: pyiceberg names both after the commit.
fn newest_manifest(table: &Table) -> PathBuf {
    let list = table.current_manifest_list();
    let commit = name_of(&list).rsplitn(6, '-').take(5).collect::<Vec<_>>();
    let commit = commit.into_iter().rev().collect::<Vec<_>>().join("-");
    list.with_file_name(commit.replace(".avro", "-m0.avro"))
}

#[test]
fn a_broken_table_fails_by_name_and_the_others_are_done() {
    type Break = fn(&Table) -> PathBuf;
    let cases: [(&str, &str, Break); 5] = [
        ("missing metadata file", "sales.customers", |table| {
            fs::remove_file(&table.metadata_file).unwrap();
            table.metadata_file.clone()
        }),
        ("truncated metadata file", "ops.wap", |table| {
            truncate(&table.metadata_file);
            table.metadata_file.clone()
        }),
        ("missing manifest list", "ops.v1table", |table| {
            fs::remove_file(table.current_manifest_list()).unwrap();
            table.current_manifest_list()
        }),
        ("truncated manifest list", "ops.events", |table| {
            truncate(&table.current_manifest_list());
            table.current_manifest_list()
        }),
        ("corrupt manifest", "sales.customers", |table| {
            let manifest = newest_manifest(table);
            let mut bytes = fs::read(&manifest).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle..].fill(0xff);
            fs::write(&manifest, bytes).unwrap();
            manifest
        }),
    ];
    let lake = Lake::by_pyiceberg();
    for (case, broken, break_it) in cases {
        lake.restore();
        let config = lake.config();
        let file = break_it(&lake.table(broken));
        let left = files_of(&lake, broken);

        let answer = Answer::of(&mut icewarden(&config, EXPIRE)).exits(4);
        let report = answer.table(broken);
        assert_eq!(report["outcome"], "failed", "{case}\n{answer}");
        let reason = report["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(name_of(&file)), "{case}: {reason:?} does not name {}", file.display());
        for table in TABLES.into_iter().filter(|&table| table != broken) {
            assert_eq!(answer.table(table)["outcome"], "done", "{case}, {table}\n{answer}");
        }
        Answer::of(&mut icewarden(&config, SWEEP));
        assert_eq!(files_of(&lake, broken), left, "{case}: nothing of {broken} is touched");

        // What a person sees names both, too.
        let text = Answer::of(&mut icewarden(&config, "run expire --older-than 5d"));
        text.says(broken).says(name_of(&file));
    }
}

#[test]
fn a_missing_catalog_file_fails_and_is_not_made() {
    let lake = Lake::by_pyiceberg();
    let config = lake.config();
    // There are marks that are due, so that the sweep, too, has something to do.
    Paused::at("after-mark", icewarden(&config, EXPIRE)).kill();
    let files = lake.all_files();
    let catalog = lake.root().join("catalog.db");
    fs::remove_file(&catalog).unwrap();
    for arguments in [EXPIRE, SWEEP, "tables", "check"] {
        let answer = Answer::of(&mut icewarden(&config, arguments)).exits(1);
        answer.says("catalog.db");
        assert!(!catalog.exists(), "{arguments} made an empty catalog");
    }
    assert_eq!(lake.all_files(), files);
}

#[test]
fn a_table_without_snapshots_is_done_without_a_commit() {
    let lake = Lake::by_pyiceberg();
    let (config, before) = (lake.config(), lake.table("ops.empty"));
    let answer = Answer::of(&mut icewarden(&config, "run expire --table ops.empty --apply --json")).exits(0);
    assert_eq!(answer.table("ops.empty")["outcome"], "done", "{answer}");
    Answer::of(&mut icewarden(&config, "run sweep --table ops.empty --apply --json")).exits(0);
    assert_eq!(lake.table("ops.empty"), before);
}

/// The lake and its state handed to a user without rights, and the binary where that user can reach it. Root may do
/// anything, so that a refused permission can be had in no other way.
struct Unprivileged {
    binary: PathBuf,
}

impl Unprivileged {
    const NOBODY: u32 = 65534;

    fn new(lake: &Lake) -> Self {
        let binary = PathBuf::from(parts::variable("ICEWARDEN_SCRATCH")).join("icewarden");
        fs::copy(env!("CARGO_BIN_EXE_icewarden"), &binary).unwrap();
        if rustix::process::geteuid().is_root() {
            let owner = format!("{0}:{0}", Self::NOBODY);
            parts::output(Command::new("chown").arg("-R").arg(owner).args([lake.root(), lake.state()]));
        }
        Self { binary }
    }

    fn run(&self, config: &Path, arguments: &str) -> Answer {
        let mut command = Command::new(&self.binary);
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.arg(format!("--reuid={}", Self::NOBODY)).arg(format!("--regid={}", Self::NOBODY));
            command.arg("--clear-groups").arg(&self.binary);
        }
        Answer::of(command.arg("--config").arg(config).args(arguments.split(' ')))
    }

    /// Takes the rights on a file or folder away, or gives them back.
    fn allow(path: &Path, mode: u32) {
        if rustix::process::geteuid().is_root() {
            chown(path, Some(if mode & 0o200 == 0 { 0 } else { Self::NOBODY }), None).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn without_permission_to_read_a_manifest_list_the_table_is_left_alone() {
    let lake = Lake::by_pyiceberg();
    let (config, user) = (lake.config(), Unprivileged::new(&lake));
    let list = lake.table("ops.events").current_manifest_list();
    let files = files_of(&lake, "ops.events");
    Unprivileged::allow(&list, 0o000);
    let answer = user.run(&config, EXPIRE).exits(4);
    assert_eq!(answer.table("ops.events")["outcome"], "failed", "{answer}");
    let answer = answer.says(name_of(&list)).says("ermission denied");
    assert_eq!(answer.table("sales.orders")["outcome"], "done", "{answer}");
    assert_eq!(files_of(&lake, "ops.events"), files);
}

#[test]
fn without_permission_to_commit_nothing_is_deleted() {
    let lake = Lake::by_pyiceberg();
    let (config, user) = (lake.config(), Unprivileged::new(&lake));
    let table = lake.table("ops.events");
    let files = files_of(&lake, "ops.events");
    Unprivileged::allow(table.metadata_file.parent().unwrap(), 0o555);
    let answer = user.run(&config, EXPIRE).exits(4);
    assert_eq!(answer.table("ops.events")["outcome"], "failed", "{answer}");
    answer.says("ermission denied");
    user.run(&config, SWEEP);
    assert_eq!(files_of(&lake, "ops.events"), files);
    assert_eq!(lake.table("ops.events"), table);
}

#[test]
fn without_permission_to_delete_the_marks_stay_and_the_next_sweep_takes_them() {
    let lake = Lake::by_pyiceberg();
    let (config, user) = (lake.config(), Unprivileged::new(&lake));
    let one_table = "run expire --table sales.customers --older-than 5d --apply --json";
    let data = lake.root().join("warehouse/sales/customers/data");
    Unprivileged::allow(&data, 0o555);
    let (files, table) = (lake.files(), lake.table("sales.customers").snapshots().len());
    let answer = user.run(&config, one_table);
    assert_eq!(answer.table("sales.customers")["counts"]["expired_snapshots"], table - 1, "{answer}");
    let sweep = user.run(&config, SWEEP);
    let data_left = |file: &&String| file.starts_with("sales/customers/data/");
    assert_eq!(lake.files().iter().filter(data_left).count(), files.iter().filter(data_left).count());
    assert!(sweep.says("ermission denied").code == Some(4));

    Unprivileged::allow(&data, 0o755);
    user.run(&config, SWEEP).exits(0);
    assert_eq!(files.len() - lake.files().len(), 26, "as many as Iceberg Java removes");
}

/// Expires all while the state lies on a disk of so many KiB; then makes the disk large, and expires and sweeps again.
/// What the first run said, and the files that it left.
fn expire_on_small_disk(lake: &Lake, kib: u32) -> (Answer, BTreeSet<String>) {
    // A file system of its own, in a namespace of its own, which ends with it.
    let script = r#"
        kib=$1 state=$2 warehouse=$3; shift 3
        mount -t tmpfs -o "size=${kib}k" none "$state" || exit 99
        "$@" run expire --older-than 5d --apply >said 2>&1; code=$?
        (cd "$warehouse" && find . -type f -not -name '*.metadata.json' -printf '%P\n') >left
        mount -o remount,size=64m none "$state" || exit 99
        "$@" run expire --older-than 5d --apply && "$@" run sweep --apply || exit 98
        exit $code"#;
    let scratch = PathBuf::from(parts::variable("ICEWARDEN_SCRATCH"));
    let mut command = Command::new("unshare");
    command.current_dir(&scratch).args(["--mount", "--map-root-user", "bash", "-c", script, "bash", &kib.to_string()]);
    command.args([lake.state(), lake.root().join("warehouse")]);
    command.arg(env!("CARGO_BIN_EXE_icewarden")).arg("--config").arg(lake.config());
    let answer = Answer::of(&mut command);
    assert_ne!(answer.code, Some(98), "{kib} KiB: runs when there is room again\n{answer}");
    assert!(matches!(answer.code, Some(0..=4)), "these tests must be allowed to mount a small tmpfs\n{answer}");
    let read = |name: &str| fs::read_to_string(scratch.join(name)).unwrap();
    let first = Answer { stdout: read("said"), ..answer };
    (first, read("left").lines().map(str::to_owned).collect())
}

#[test]
fn a_full_disk_for_the_state_deletes_nothing_and_the_next_run_recovers() {
    let lake = Lake::by_pyiceberg();
    let files = lake.files();
    let mut full = 0;
    // From too small for the tables of the state to just too small for the last mark list.
    for kib in [4, 64, 200, 300, 340, 380, 420] {
        lake.restore();
        let (answer, left) = expire_on_small_disk(&lake, kib);
        if answer.code != Some(0) {
            full += 1;
            let answer = answer.exits(1).says("icewarden.db").says("disk is full");
            assert_eq!(left, files, "{kib} KiB: nothing is deleted\n{answer}");
        }
        assert_eq!(files.len() - lake.files().len(), 6 + 2 + 5 + 26 + 12, "{kib} KiB, then all of the disk");
    }
    assert!(full >= 4, "only {full} disks were too small");
}

#[test]
fn a_state_that_cannot_be_opened_fails_before_anything_is_done() {
    let lake = Lake::by_pyiceberg();
    let (config, files, tables) = (lake.config(), lake.all_files(), lake.tables());
    fs::create_dir(lake.state().join("icewarden.db")).unwrap();
    let answer = Answer::of(&mut icewarden(&config, EXPIRE)).exits(1);
    answer.says("icewarden.db");
    assert_eq!(lake.all_files(), files);
    assert_eq!(lake.tables(), tables);
}
