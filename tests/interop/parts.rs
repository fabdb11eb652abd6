//! The parts that `tests/run` fetched: Python with pyiceberg, moto's S3 server and SeaweedFS, Iceberg Java's oracle, writer
//! and REST catalog, and Spark.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A variable that `tests/run` sets.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run these tests by tests/run"))
}

/// Runs a command to its end; its stdout. Panics with its stderr where it fails.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs one of our Python scripts.
pub(crate) fn python(script: &str, lake: &Path) -> String {
    output(script_of_ours(script).arg(lake))
}

/// The same with more arguments.
pub(crate) fn python_with(script: &str, lake: &Path, arguments: &[&str]) -> String {
    output(script_of_ours(script).arg(lake).args(arguments))
}

/// One of our Python scripts, to be given arguments.
pub(crate) fn script_of_ours(script: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(script);
    let mut command = Command::new(variable("ICEWARDEN_PYTHON"));
    command.arg(script);
    command
}

/// Java, told to start fast; `classpath` is the variable that holds it.
fn java(classpath: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn").arg("-cp").arg(variable(classpath));
    command
}

/// What Iceberg Java's expiry did to a table, or why it refused.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct JavaExpiry {
    table: String,
    #[serde(default)]
    pub(crate) expired: Vec<i64>,
    #[serde(default)]
    pub(crate) dropped: Vec<String>,
    pub(crate) refused: Option<String>,
}

/// Expires with Iceberg Java, files included; `-` leaves an option to the table's properties.
pub(crate) fn java_expire(lake: &Path, older_than: &str, keep: &str, tables: &[&str]) -> BTreeMap<String, JavaExpiry> {
    let mut command = java("ICEWARDEN_JAVA_CORE");
    command.arg("CoreOracle").arg(lake.join("catalog.db")).arg(format!("file://{}/warehouse", lake.display()));
    let lines = output(command.args(["lake", older_than, keep]).args(tables));
    let expiries = lines.lines().map(|line| serde_json::from_str::<JavaExpiry>(line).unwrap());
    expiries.map(|expiry| (expiry.table.clone(), expiry)).collect()
}

/// What Spark's `remove_orphan_files` would delete of a table, or why it refused.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct SparkOrphans {
    table: String,
    #[serde(default)]
    pub(crate) orphans: BTreeSet<String>,
    pub(crate) refused: Option<String>,
}

/// Asks Spark for the orphans of these tables that are older than that many milliseconds since the epoch; deletes
/// nothing. `listing` is `list` (by Hadoop) or `prefix` (by Iceberg's own IO); properties are the catalog's.
pub(crate) fn spark_orphans(
    (database, warehouse): (&Path, &str),
    older_than_ms: i64,
    listing: &str,
    tables: &[&str],
    properties: &[String],
) -> BTreeMap<String, SparkOrphans> {
    let mut command = Command::new("java");
    command.arg(format!("@{}", variable("ICEWARDEN_JAVA_SPARK_OPTIONS")));
    command.args(["-Xmx1200m", "-XX:TieredStopAtLevel=1", "-cp"]).arg(variable("ICEWARDEN_JAVA_SPARK"));
    command.arg("SparkOrphans").arg(database).args([warehouse, &older_than_ms.to_string(), listing]).args(tables);
    let lines = output(command.arg("--").args(properties).env("AWS_REGION", "us-east-1"));
    let said = lines.lines().map(|line| serde_json::from_str::<SparkOrphans>(line).unwrap());
    said.map(|said| (said.table.clone(), said)).collect()
}

/// Starts a server that says `listening PORT...` when it is ready, and ends at the end of its stdin; its addresses.
fn listening(command: &mut Command) -> (Child, Vec<String>) {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = started.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ports = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("{command:?} said {line:?}"));
    (process, ports.split(' ').map(|port| format!("http://127.0.0.1:{port}")).collect())
}

/// Ends at the end of its stdin, so when this is dropped, and also when the tests are killed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Iceberg's own REST catalog on a lake's SQLite file; ends when dropped.
pub(crate) struct RestCatalog {
    _server: Server,
    pub(crate) uri: String,
    token: String,
}

impl RestCatalog {
    pub(crate) fn serve(lake: &Path) -> Self {
        Self::serve_with(&lake.join("catalog.db"), &format!("file://{}/warehouse", lake.display()), &[])
    }

    /// With more arguments: see `RestFixture.java`.
    pub(crate) fn serve_with(database: &Path, warehouse: &str, arguments: &[&str]) -> Self {
        // Our own requests to it need it, though they are plain HTTP.
        icewarden::catalog::install_crypto();
        let mut command = java("ICEWARDEN_JAVA_REST");
        command.args(["org.apache.iceberg.rest.RestFixture", "lake"]).arg(database).arg(warehouse).args(arguments);
        let (process, mut addresses) = listening(command.env("AWS_REGION", "us-east-1"));
        let token = arguments.iter().find_map(|argument| argument.strip_prefix("token=")).unwrap_or_default();
        Self { _server: Server(process), uri: addresses.remove(0), token: token.to_owned() }
    }

    /// Writes a format 3 table with Iceberg Java.
    pub(crate) fn write_format_3(&self, table: &str) {
        output(java("ICEWARDEN_JAVA_CORE").args(["CoreWriter", &self.uri, table]));
    }

    /// Creates a branch, as any client would.
    pub(crate) fn create_branch(&self, namespace: &str, table: &str, branch: &str, snapshot: i64) {
        let url = format!("{}/v1/namespaces/{namespace}/tables/{table}", self.uri);
        let body = serde_json::json!({"requirements": [], "updates": [
            {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot}]});
        let (status, answer) = self.request(reqwest::Client::new().post(url).json(&body));
        assert!(status.is_success(), "creating {branch} at {snapshot}: {status} {answer}");
    }

    /// Makes the next commit fail: `when` is `before` or `after` it is applied.
    pub(crate) fn fail_next_commit(&self, when: &str, status: u16) {
        self.fault(&format!("when={when}&status={status}&path=.*/tables/.*"), "");
    }

    /// Makes requests fail, by the words of `RestFixture.java`; a body is the answer to them.
    pub(crate) fn fault(&self, words: &str, body: &str) {
        self.request(reqwest::Client::new().post(format!("{}/_fault?{words}", self.uri)).body(body.to_owned()));
    }

    /// Every request so far: `METHOD PATH?QUERY STATUS`.
    pub(crate) fn log(&self) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let log = runtime.block_on(async { reqwest::get(format!("{}/_log", self.uri)).await.unwrap().text().await });
        log.unwrap().lines().map(str::to_owned).collect()
    }

    pub(crate) fn request(&self, request: reqwest::RequestBuilder) -> (reqwest::StatusCode, Value) {
        send(request.bearer_auth(&self.token))
    }
}

/// Nessie over the bucket of an S3 server; ends when dropped.
pub(crate) struct Nessie {
    _server: Server,
    /// Of its Iceberg REST catalog.
    pub(crate) uri: String,
}

impl Nessie {
    pub(crate) fn serve(storage: &S3Server) -> Self {
        let mut command = script_of_ours("nessie.py");
        let (process, addresses) = listening(command.arg(variable("ICEWARDEN_NESSIE")).arg(&storage.endpoint));
        Self { _server: Server(process), uri: format!("{}/iceberg", addresses[0]) }
    }
}

/// Sends it; what is answered, if it is JSON.
pub(crate) fn send(request: reqwest::RequestBuilder) -> (reqwest::StatusCode, Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let response = request.send().await.unwrap();
        (response.status(), response.json().await.unwrap_or(Value::Null))
    })
}

/// An S3 server with one bucket, `lake`; ends when dropped.
pub(crate) struct S3Server {
    _server: Server,
    pub(crate) endpoint: String,
    /// Its Iceberg REST catalog, where it has one.
    pub(crate) rest: Option<String>,
}

impl S3Server {
    /// Moto's, in memory, with the objects of an archive that [`Self::save`] made.
    pub(crate) fn serve(archive: Option<&Path>) -> Self {
        Self::start(script_of_ours("s3_server.py").args(archive))
    }

    /// SeaweedFS, with the objects of such an archive.
    pub(crate) fn seaweedfs(archive: Option<&Path>) -> Self {
        icewarden::catalog::install_crypto();
        let server = Self::start(&mut script_of_ours("seaweedfs.py"));
        if let Some(archive) = archive {
            server.act(&["load", archive.to_str().unwrap()], &[]);
        }
        server
    }

    /// Stands before this one, and has a fault of `s3_fault.py`.
    pub(crate) fn with_fault(&self, fault: &str) -> Self {
        Self::start(script_of_ours("s3_fault.py").args([&self.endpoint, fault]))
    }

    fn start(command: &mut Command) -> Self {
        let (process, mut addresses) = listening(command);
        Self { _server: Server(process), endpoint: addresses.remove(0), rest: addresses.pop() }
    }

    /// Runs one of our Python scripts on a lake whose storage is here.
    pub(crate) fn python(&self, script: &str, lake: impl AsRef<OsStr>, arguments: &[&str]) -> String {
        let mut command = script_of_ours(script);
        command.arg(lake).args(arguments).arg("--prop").arg(format!("s3.endpoint={}", self.endpoint));
        let properties = ["s3.access-key-id=test", "s3.secret-access-key=testtest", "s3.region=us-east-1"];
        output(command.args(properties.iter().flat_map(|property| ["--prop", property])))
    }

    /// Every object's key and digest, by a plain client.
    pub(crate) fn objects(&self) -> BTreeMap<String, String> {
        self.objects_of("lake")
    }

    /// The same of another bucket.
    pub(crate) fn objects_of(&self, bucket: &str) -> BTreeMap<String, String> {
        serde_json::from_str(&self.act(&["list", bucket], &[])).unwrap()
    }

    /// Copies all objects into an archive.
    pub(crate) fn save(&self, archive: &Path) {
        self.act(&["save", archive.to_str().unwrap()], &[]);
    }

    /// Writes an object to each of these keys.
    pub(crate) fn put(&self, keys: &[String]) {
        self.act(&["put"], keys);
    }

    /// The same for many; what a client that asks for each is told: `size time tag`, the time in seconds.
    pub(crate) fn put_many(&self, keys: &[String]) -> BTreeMap<String, String> {
        let file = tempfile::NamedTempFile::new_in(variable("ICEWARDEN_SCRATCH")).unwrap();
        std::fs::write(file.path(), serde_json::to_string(keys).unwrap()).unwrap();
        serde_json::from_str(&self.act(&["put-file", file.path().to_str().unwrap()], &[])).unwrap()
    }

    /// The keys behind this one, as the server sees it.
    pub(crate) fn objects_after(&self, key: &str) -> BTreeSet<String> {
        serde_json::from_str(&self.act(&["after", key], &[])).unwrap()
    }

    /// Deletes these.
    pub(crate) fn delete(&self, keys: &[String]) {
        self.act(&["delete"], keys);
    }

    /// `Enabled` or `Suspended`.
    pub(crate) fn set_versioning(&self, status: &str) {
        self.act(&["versioning", status], &[]);
    }

    /// How many versions and delete markers each key has.
    pub(crate) fn versions(&self) -> BTreeMap<String, u64> {
        serde_json::from_str(&self.act(&["versions"], &[])).unwrap()
    }

    fn act(&self, arguments: &[&str], keys: &[String]) -> String {
        let mut command = script_of_ours("s3_objects.py");
        command.arg(&self.endpoint).args(arguments);
        if !keys.is_empty() {
            command.arg(serde_json::to_string(keys).unwrap());
        }
        output(&mut command)
    }
}
