use std::collections::BTreeMap;

use proptest::prelude::*;
use toml::de::DeTable;

use super::*;

const SHIPPED: &str = include_str!("../../config/icewarden.toml");
const CATALOG: &str = "[[catalog]]\nname = \"lake\"\ntype = \"sql\"\nuri = \"sqlite:///c.db\"\n";
/// Stands for every secret that a test reads; it must never be printed.
const SECRET: &str = "hunter2";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n";

/// The environment has SECRET, AGE, EMPTY and S3; files `secret` and `ca.pem` lie in the folder.
fn parse(text: &str) -> Result<(Config, Vec<Problem>), ConfigError> {
    parse_in("/conf", text)
}

fn parse_in(folder: &str, text: &str) -> Result<(Config, Vec<Problem>), ConfigError> {
    let env = |name: &str| match name {
        "SECRET" => Some(SECRET.to_owned()),
        "AGE" => Some("2d".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    let read = |path: &Path| match path.to_str() {
        Some("/conf/secret" | "/run/secret") => Ok(format!("{SECRET}\n")),
        Some("/conf/ca.pem") => Ok(CERTIFICATE.to_owned()),
        Some("/conf/empty") => Ok("\n".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    Config::parse(text, "c.toml", &Sources { folder: Path::new(folder), env: &env, read: &read })
}

/// The problems of a file that has a good catalog after this text, as `line:column message (hint)`.
fn problems(text: &str) -> Vec<String> {
    let problems = match parse(&format!("{text}\n{CATALOG}")) {
        Ok((_, warnings)) => warnings,
        Err(ConfigError::Invalid { problems, .. }) => problems,
        Err(other) => panic!("{other}"),
    };
    serious(problems).iter().map(|problem| problem.to_string().trim_start_matches("c.toml:").to_owned()).collect()
}

/// The warnings that are about more than keys whose job comes later.
fn serious(warnings: Vec<Problem>) -> Vec<Problem> {
    let is_later = |problem: &Problem| {
        problem.severity == Severity::Warning && problem.message.contains("comes with a later version")
    };
    warnings.into_iter().filter(|warning| !is_later(warning)).collect()
}

fn good(text: &str) -> Config {
    let (config, warnings) = parse(&format!("{text}\n{CATALOG}")).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(serious(warnings), [], "{text}");
    config
}

#[test]
fn the_shipped_file_equals_the_built_in_defaults() {
    let config = good(SHIPPED);
    let expected =
        Config { file: config.file.clone(), catalogs: config.catalogs.clone(), ..Config::built_in_defaults() };
    assert_eq!(config, expected);
    assert_eq!(config.catalogs.len(), 1);
}

#[test]
fn the_shipped_file_has_every_key_with_a_comment_line() {
    let mut before = "";
    for line in SHIPPED.lines() {
        let is_key = !line.is_empty() && !line.starts_with("# ") && !line.starts_with('[') && line != "#";
        let is_header = line.starts_with("#[") || line.starts_with('[');
        assert!(!is_key || is_header || before.starts_with("# "), "no comment above {line}");
        before = line;
    }
    let enabled: Vec<&str> = SHIPPED
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .collect();
    let text = enabled.join("\n");
    let env = |_: &str| Some("x".to_owned());
    let sources = Sources { folder: Path::new("/"), env: &env, read: &|_| Ok(CERTIFICATE.to_owned()) };
    let reader = reader::Reader::new(&text, "", &sources);
    let table = DeTable::parse(&text).unwrap();
    check::config(raw::Section::root(&reader, table.get_ref()));
    // The other way to give a secret that is there.
    assert_eq!(reader.absent(), ["catalog.credential_file", "catalog.token", "pulls.token"]);
    assert_eq!(serious(reader.into_problems()), []);
}

#[test]
fn the_shipped_file_alone_only_lacks_a_catalog() {
    let error = parse(SHIPPED).unwrap_err().to_string();
    assert_eq!(
        error,
        "c.toml has 1 problem\n  c.toml:1:1  no [[catalog]] (hint: add at least one, with name, type = \"sql\" or \
         \"rest\", and uri)"
    );
}

#[test]
fn the_examples_are_good() {
    let sandbox = include_str!("../../config/examples/sandbox-sqlite.toml");
    let (config, warnings) = parse_in("/my/lake", sandbox).unwrap();
    assert_eq!(serious(warnings), []);
    assert_eq!(config.state.database.reveal(), "sqlite:///my/lake/icewarden.db");
    assert_eq!(config.catalogs[0].warehouse.as_deref(), Some("file:///my/lake/warehouse"));

    let postgres = include_str!("../../config/examples/postgres.toml");
    let env = |name: &str| Some(format!("{}%40", name.to_lowercase()));
    let read = |_: &Path| Ok(SECRET.to_owned());
    let (config, warnings) =
        Config::parse(postgres, "postgres.toml", &Sources { folder: Path::new("/"), env: &env, read: &read }).unwrap();
    assert_eq!(serious(warnings), []);
    let state = PostgresUrl::parse(&config.state.database).unwrap();
    assert_eq!(state.reveal().password(), Some("state_password%40"));
    assert_eq!(state.to_string(), "postgres://icewarden@db.example.com/icewarden");

    let rest = include_str!("../../config/examples/rest-s3.toml");
    let env = |name: &str| (name == "S3_ACCESS_KEY_ID").then(|| "key".to_owned());
    let read = |_: &Path| Ok(SECRET.to_owned());
    let (config, warnings) =
        Config::parse(rest, "rest.toml", &Sources { folder: Path::new("/"), env: &env, read: &read }).unwrap();
    assert_eq!(serious(warnings), []);
    assert_eq!(config.storage["s3://prod-lake"]["secret_access_key"].reveal(), SECRET);
}

#[test]
fn everything_that_is_wrong_is_reported_at_once_with_its_place() {
    let text = "[[catalog]]\nname = \"a.b\"\n[expire]\nolder_then = \"5d\"\nretain_last = 0\n[[schedule]]\njob = \
                \"expire\"\ncron = \"0 25 * * *\"\n[orphans]\ngrace = \"1h\"\n[executor]\ntype = \"kubernetes\"\n";
    assert_eq!(
        parse(text).unwrap_err().to_string(),
        "c.toml has 8 problems
  c.toml:1:1   [[catalog]] has no `type` (hint: \"sql\" or \"rest\")
  c.toml:1:1   [[catalog]] has no `uri` (hint: sqlite:///path or postgres://… for type \"sql\", https://… for type \"rest\")
  c.toml:2:8   name \"a.b\": a catalog's name has no dots (hint: the name is the first part of catalog.namespace.table)
  c.toml:4:1   unknown key `older_then` in [expire], did you mean `older_than`?
  c.toml:5:15  retain_last 0: expected 1 or more
  c.toml:8:8   cron \"0 25 * * *\": hour 25 is not in 0-23
  c.toml:10:9  grace 1h is below the minimum of 24h (hint: only [guard] allow_floor_below_minimum = true allows less)
  c.toml:11:1  [executor] type \"kubernetes\" comes with a later version; this one runs everything in its own process \
         (hint: write \"local\")      (warning)"
    );
}

#[test]
fn each_kind_of_problem_has_its_place_and_words() {
    let duration = "expected a duration such as \"5d\", \"36h\" or \"30m\" (units w, d, h, m, s, ms)";
    let location = "(hint: s3://bucket/prefix, file:///path, or file:./path beside this file)";
    let database =
        "(hint: sqlite:///path, sqlite://./path beside this file, or postgres://user:password@host/database)";
    let floor = "(hint: only [guard] allow_floor_below_minimum = true allows less)";
    let variable = "(hint: write $${ for the two characters themselves)";
    let cases: Vec<(&str, Vec<String>)> = vec![
        // Keys.
        ("x = 1", vec!["1:1  unknown section [x]".into()]),
        ("retain_last = \"x\"", vec!["1:1  unknown key `retain_last` outside of any section".into()]),
        ("[expir]\na = 1", vec!["1:2  unknown section [expir], did you mean [expire]?".into()]),
        ("[expire]\nfrobnicate = 1", vec!["2:1  unknown key `frobnicate` in [expire]".into()]),
        ("[locations]\nscheme = {}", vec!["2:1  unknown key `scheme` in [locations], did you mean `schemes`?".into()]),
        (
            "[[policy]]\ntables = [\"*\"]\nexpire = { older = \"1d\" }\nrefs = [{ name = \"x\", max_ages = \"1d\" }]",
            vec![
                "3:12  unknown key `older` in [[policy]] expire".into(),
                "4:23  unknown key `max_ages` in [[policy]] refs, did you mean `max_age`?".into(),
            ],
        ),
        (
            "[[policy]]\ntables = [\"*\"]\ntags = [{ name = \"x\", retain_last = 1 }]",
            vec!["3:23  unknown key `retain_last` in [[policy]] tags".into()],
        ),
        // Types.
        ("expire = 5", vec!["1:10  expire: expected a section, found a number".into()]),
        ("[expire]\nolder_than = 5", vec![format!("2:14  older_than: {duration}, found a number")]),
        ("[expire]\nretain_last = \"1\"", vec!["2:15  retain_last: expected a whole number, found text in quotes".into()]),
        ("[expire]\nkeep_fork_points = 1", vec!["2:20  keep_fork_points: expected true or false, found a number".into()]),
        (
            "[orphans]\nprotected_prefixes = \"s3://b\"\nexternal_readers = [1]",
            vec![
                "2:22  protected_prefixes: expected an array of texts such as [\"…\"], found text in quotes".into(),
                "3:21  external_readers: expected text in quotes, found a number".into(),
            ],
        ),
        ("[guard]\nmax_ratio = true", vec!["2:13  max_ratio: expected a number from 0 to 1, found true or false".into()]),
        (
            "[policy]\ntables = [\"*\"]",
            vec!["1:1  policy: expected one or several [[policy]], found a table".into()],
        ),
        (
            "[[policy]]\ntables = [\"*\"]\nrefs = {}\ntags = [1]\nexpire = 1",
            vec![
                "3:8  refs: expected an array of tables such as [{ name = \"…\" }], found a table".into(),
                "4:9  tags: expected tables, found a number".into(),
                "5:10  expire: expected a table, found a number".into(),
            ],
        ),
        ("[inventory]\nlisting = 2026-01-01", vec!["2:11  listing: expected true or false, found a time".into()]),
        // Values.
        ("[expire]\nolder_than = \"5 dais\"", vec![format!("2:14  older_than \"5 dais\": {duration}")]),
        ("[expire]\nolder_than = \"-1d\"", vec![format!("2:14  older_than \"-1d\": {duration}")]),
        ("[expire]\nolder_than = \"\"", vec!["2:14  older_than is empty".into()]),
        ("[expire]\nretain_last = -1", vec!["2:15  retain_last -1: expected 1 or more".into()]),
        ("[expire]\nretain_last = 99999999999", vec!["2:15  retain_last 99999999999: expected 1 or more".into()]),
        (
            "[expire]\nref_age = \"spek\"\noutside_location = \"away\"",
            vec![
                "2:11  ref_age \"spek\": expected \"created\" or \"spec\", did you mean \"spec\"?".into(),
                "3:20  outside_location \"away\": expected \"keep\" or \"delete\"".into(),
            ],
        ),
        ("[guard]\nmax_ratio = 1.5", vec!["2:13  max_ratio 1.5: expected a number from 0 to 1".into()]),
        ("[guard]\nmax_ratio = nan", vec!["2:13  max_ratio nan: expected a number from 0 to 1".into()]),
        ("[guard]\nmax_snapshots_per_commit = 0", vec!["2:28  max_snapshots_per_commit 0: expected 1 or more".into()]),
        ("[limits]\nconcurrency = 0", vec!["2:15  concurrency 0: expected 1 to 10000".into()]),
        (
            "[limits]\nmemory = \"2 gigs\"",
            vec![
                "2:10  memory \"2 gigs\": expected a size such as \"2GiB\" or \"500MB\" (units B, KiB, MiB, GiB, TiB, KB, \
                 MB, GB, TB)"
                    .into(),
            ],
        ),
        (
            "[http]\nlisten = \"localhost\"",
            vec![
                "2:10  listen \"localhost\": expected an IP address and a port such as \"127.0.0.1:8080\" or \
                 \"[::]:8080\""
                    .into(),
            ],
        ),
        // Floors.
        ("[expire]\nfloor = \"59m\"", vec![format!("2:9  floor 59m is below the minimum of 1h {floor}")]),
        ("[expire]\ndrop_grace = \"0s\"", vec![format!("2:14  drop_grace 0s is below the minimum of 24h {floor}")]),
        (
            "[orphans]\nolder_than = \"23h\"\ngrace = \"1h\"\nmetadata_older_than = \"1s\"",
            vec![
                format!("2:14  older_than 23h is below the minimum of 24h {floor}"),
                format!("3:9  grace 1h is below the minimum of 24h {floor}"),
                format!("4:23  metadata_older_than 1s is below the minimum of 24h {floor}"),
            ],
        ),
        (
            "[guard]\nallow_floor_below_minimum = true\n[expire]\nfloor = \"0s\"",
            vec![
                "4:9  floor 0s is below the minimum of 1h (hint: allowed by [guard] allow_floor_below_minimum)      \
                 (warning)"
                    .into(),
            ],
        ),
        (
            "[expire]\nolder_than = \"30m\"",
            vec![
                "2:14  older_than 30m is below [expire] floor 1h, which counts instead (hint: write \"1h\")      (warning)"
                    .into(),
            ],
        ),
        (
            "[[policy]]\ntables = [\"*\"]\nexpire = { older_than = \"1s\" }",
            vec![
                "3:25  older_than 1s is below [expire] floor 1h, which counts instead (hint: write \"1h\")      (warning)"
                    .into(),
            ],
        ),
        // Catalogs.
        (
            "[[catalog]]\nname = \"lake\"\ntype = \"rest\"\nuri = \"https://x/v1/\"",
            vec![
                "4:7  uri ends in /v1, which is added to it (hint: leave it out, unless the server has it twice)      \
                 (warning)"
                    .into(),
                "6:8  name \"lake\": the catalog of line 2 has this name".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"\"\ntype = \"sqll\"\nuri = \"x\"\ntoken = \"x\"\nnam = 1",
            vec![
                "2:8  name is empty".into(),
                "3:8  type \"sqll\": expected \"sql\" or \"rest\", did you mean \"sql\"?".into(),
                "6:1  unknown key `nam` in [[catalog]], did you mean `name`?".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"sql\"\nuri = \"postgres://u:hunter2@h\"\ntoken = \"hunter2\"",
            vec![
                "4:7  uri names no database".into(),
                "5:9  token is for catalogs of type \"rest\"".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"sql\"\nuri = \"mysql://u:hunter2@h/d\"\nwarehouse = \"here\"",
            vec![
                format!("4:7  uri: not the address of a SQLite or PostgreSQL database {database}"),
                format!("5:13  warehouse \"here\": not a location {location}"),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"sql\"\nuri = \"sqlite://:memory:\"",
            vec![format!("4:7  uri: the database must be a file {database}")],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"sqlite:///x\"\ntoken = \"hunter2\"\ncredential = \"a:b\"",
            vec![
                "4:7  uri: expected the address of a server, https://… or http://…".into(),
                "6:14  token and credential exclude each other".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://u:hunter2@x\"\ncredential = \"a:b\"\n\
             oauth2_server_uri = \"https://x?y\"",
            vec![
                "4:7  uri holds a password, which would be printed (hint: credential or token, with ${ENV} or as a \
                 *_file)"
                    .into(),
                "6:21  oauth2_server_uri: the address of a server ends before `?` and `#`".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ncredential = \"hunter2:\"\nca_file = \"secret\"",
            vec![
                "5:14  credential: expected the client's id and secret, as in id:secret".into(),
                "6:11  ca_file \"secret\": the file has no certificate in PEM".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken = \"hunter2\"\nscope = \"s\"\nca_file = \"nope\"",
            vec![
                "6:9  scope does nothing without a `credential` (hint: leave it out)      (warning)".into(),
                "7:11  ca_file \"nope\": cannot read it: entity not found".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken = \"x\"\n[catalog.headers]\n\
             \"a b\" = \"x\"\nHost = \"x\"\nAuthorization = \"Basic hunter2\"\nX-Key = 1\nx-a = \"a\"\nX-A = \"b\"\n\
             x-b = \"hunter2\\nb\"",
            vec![
                "7:1  \"a b\" is no name of an HTTP header".into(),
                "8:1  Host is a header that each request sets itself".into(),
                "9:1  Authorization is what token or credential set; have one of them only".into(),
                "10:9  X-Key: expected text in quotes, found a number".into(),
                "12:1  [[catalog]] headers has X-A twice".into(),
                "13:7  x-b holds characters that no HTTP header can carry".into(),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"sql\"\nuri = \"sqlite:///x\"\nca_file = \"ca.pem\"\nheaders = { a = \"x\" }",
            vec![
                "5:11  ca_file is for catalogs of type \"rest\"".into(),
                "6:11  headers is for catalogs of type \"rest\"".into(),
            ],
        ),
        // Secrets.
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken = \"${NOPE}\"",
            vec!["5:9  the environment has no variable NOPE (hint: set it, or write $${NOPE} for the text itself)".into()],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken = \"a${b c}\"\nscope = \"${x\"",
            vec![
                format!("5:9  the name of a variable is made of letters, digits and `_` {variable}"),
                format!("6:9  `${{` without its `}}` {variable}"),
            ],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken_file = \"nope\"\ncredential = \"${EMPTY}\"",
            vec!["5:14  token_file \"nope\": cannot read it: entity not found".into(), "6:14  credential is empty".into()],
        ),
        (
            "[[catalog]]\nname = \"p\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken_file = \"secret\"\ntoken = \"hunter2\"",
            vec!["5:14  [[catalog]] has both `token` and `token_file`".into()],
        ),
        (
            "[storage.\"s3://b\"]\nsecret_access_key_file = \"empty\"",
            vec!["2:26  secret_access_key_file \"empty\": the file is empty".into()],
        ),
        ("[expire]\nolder_than = \"${SECRET}\"", vec![format!("2:14  older_than \"${{SECRET}}\": {duration}")]),
        (
            "[[schedule]]\njob = \"sweep\"\ncron = \"0 ${SECRET} * * *\"",
            vec!["3:8  cron \"0 ${SECRET} * * *\": not a cron line of five fields".into()],
        ),
        // Storage.
        (
            "[storage.\"s3://b\"]\nsecret_acces_key = \"hunter2\"\nregion = [1]\nendpoint = \"x\"\naws_endpoint = \"y\"",
            vec![
                "2:1  unknown key `secret_acces_key` in [storage.\"s3://b\"], did you mean `secret_access_key`?".into(),
                "3:10  region: expected text, a number, or true or false, found an array".into(),
                "5:1  [storage.\"s3://b\"] has both `endpoint` and `aws_endpoint`".into(),
            ],
        ),
        (
            "[storage.\"s3://b\"]\n[storage.\"s3a://b\"]\n[storage.\"hdfs://b\"]\n[storage.\"s3://b/x\"]\n[storage.b]",
            ["2:10  [storage.\"s3a://b\"] is the same store as line 1 names".to_owned()]
                .into_iter()
                .chain([("3:10", "hdfs://b"), ("4:10", "s3://b/x"), ("5:10", "b")].map(|(at, name)| {
                    format!(
                        "{at}  [storage.{name:?}] names no store that has options (hint: the name of a bucket: s3://bucket, \
                         gs://bucket or abfss://container@account.dfs.core.windows.net)"
                    )
                }))
                .collect(),
        ),
        (
            "[storage.\"gs://b\"]\nservice_acount = \"x\"\nregion = \"x\"\n[storage.\"abfs://c@a.x\"]\naccess_key_id = \"x\"\n\
             account_key = \"x\"\naccess_key = \"y\"",
            vec![
                "2:1  unknown key `service_acount` in [storage.\"gs://b\"], did you mean `service_account`?".into(),
                "3:1  unknown key `region` in [storage.\"gs://b\"]".into(),
                "5:1  unknown key `access_key_id` in [storage.\"abfs://c@a.x\"], did you mean `access_key`?".into(),
                "7:1  [storage.\"abfs://c@a.x\"] has both `account_key` and `access_key`".into(),
            ],
        ),
        // Places.
        (
            "[state]\ndatabase = \"postgres://x\"\nplans = \"gs://b/x\"",
            vec![
                "2:12  database names no database".into(),
                "3:9  plans \"gs://b/x\": plans are kept in file:///path or s3://bucket/prefix".into(),
            ],
        ),
        (
            "[state]\nplans = \"file://host/x\"",
            vec!["2:9  plans \"file://host/x\": a file has no host (hint: file:///path, or file:./path beside this file)".into()],
        ),
        (
            "[orphans]\nprotected_prefixes = [\"s3://b/x\", \"nowhere\", \" \"]",
            vec![
                format!("2:35  protected_prefixes \"nowhere\": not a location {location}"),
                "2:46  protected_prefixes has an empty text".into(),
            ],
        ),
        (
            "[locations]\nschemes = { a = \"b\", b = \"c\", d = 1 }",
            vec![
                "2:17  \"b\" is itself the same as another; name that one".into(),
                "2:35  d: expected text in quotes, found a number".into(),
            ],
        ),
        // Policies and schedules.
        (
            "[[policy]]\nmode = \"delete\"",
            vec![
                "1:1  [[policy]] has no `tables` (hint: patterns such as [\"sales.*\"])".into(),
                "2:8  mode \"delete\": expected \"observe\", \"mark\" or \"sweep\"".into(),
            ],
        ),
        ("[[policy]]\ntables = []", vec!["2:10  tables names no table (hint: [\"*\"] names all)".into()]),
        (
            "[[policy]]\ntables = [\"*\"]\nexclusive = { uuids = [\"x\"] }\nrefs = [{ on_pr_closed = \"drip\" }]",
            vec![
                "3:13  [[policy]] exclusive has no `reason` (hint: why the table's folders are its own, for the audit log)"
                    .into(),
                "3:24  uuids \"x\": not a uuid".into(),
                "4:9  [[policy]] refs has no `name` (hint: a pattern such as \"pr_*\")".into(),
                "4:26  on_pr_closed \"drip\": expected \"keep\", \"report\" or \"drop\", did you mean \"drop\"?".into(),
            ],
        ),
        (
            "[[policy]]\ntables = [\"*\"]\nexclusive = { reason = \"x\" }",
            vec![
                "3:13  [[policy]] exclusive has no `uuids` (hint: the table-uuids of the tables that share its folders)"
                    .into(),
            ],
        ),
        (
            "[[schedule]]\njob = \"expires\"\ntime_zone = \"Europe/Berlim\"",
            vec![
                "1:1  [[schedule]] has no `cron` (hint: five fields such as \"0 3 * * *\")".into(),
                "2:7  job \"expires\": expected \"expire\", \"orphans\", \"inventory\", \"sweep\" or \"reconcile\", did you \
                 mean \"expire\"?"
                    .into(),
                "3:13  time_zone \"Europe/Berlim\": not a time zone such as \"Europe/Berlin\", did you mean \
                 \"Europe/Berlin\"?"
                    .into(),
            ],
        ),
        (
            "[pulls]\ntype = \"github\"",
            vec!["1:1  [pulls] has no `repository` (hint: owner/name of the one repository whose pull requests count)".into()],
        ),
        ("[pulls]\ntype = \"file\"", vec!["1:1  [pulls] has no `url` (hint: the location of the file)".into()]),
        ("[pulls]\nrepository = \"a/b\"", vec!["1:1  [pulls] has no `type` (hint: github, gitlab or file)".into()]),
    ];
    for (text, expected) in cases {
        let found = problems(text);
        assert_eq!(found, expected, "{text}");
        assert!(!found.concat().contains(SECRET), "{text}");
    }
}

#[test]
fn every_section_reports_a_key_that_it_does_not_know() {
    let sections = [
        "state",
        "http",
        "expire",
        "orphans",
        "locations",
        "guard",
        "inventory",
        "erasure",
        "limits",
        "pulls",
        "metrics",
        "executor",
    ];
    for section in sections {
        assert_eq!(problems(&format!("[{section}]\nzzz = 1")), [format!("2:1  unknown key `zzz` in [{section}]")]);
    }
    for section in ["catalog", "policy", "schedule"] {
        let found = problems(&format!("[[{section}]]\nzzz = 1"));
        assert!(found.contains(&format!("2:1  unknown key `zzz` in [[{section}]]")), "{found:?}");
    }
}

#[test]
fn text_that_is_no_toml_is_reported_alone_and_without_quoting_it() {
    let found = problems("[expire]\nolder_than = hunter2\nb = \n[x");
    assert!(found.iter().any(|problem| problem.starts_with("2:14  ")), "{found:?}");
    assert!(found.iter().any(|problem| problem.starts_with("3:")), "{found:?}");
    assert!(!found.concat().contains(SECRET), "{found:?}");
    assert_eq!(problems("[expire]\na = 1\na = 2").len(), 1);
}

#[test]
fn columns_count_characters() {
    let found = problems("[expire]\n\"é€𝄞\" = 1\n[[policy]]\ntables = [\"é\", \"\"]");
    assert_eq!(found[0], "2:1  unknown key `é€𝄞` in [expire]");
    assert_eq!(found[1], "4:16  tables has an empty text");
}

#[test]
fn secrets_are_read_and_never_shown() {
    let config = good(
        "[[catalog]]\nname = \"a\"\ntype = \"rest\"\nuri = \"https://x\"\ncredential = \"id:${SECRET}\"\nscope = \"s\"\n\
         ca_file = \"ca.pem\"\n[catalog.headers]\nX-Api-Key = \"${SECRET}\"\nX-Tenant_file = \"secret\"\n\
         [[catalog]]\nname = \"b\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken_file = \"secret\"\n\
         vended_credentials = false\n\
         [storage.\"s3a://b\"]\naccess_key_id = \"${SECRET}\"\nsecret_access_key_file = \"/run/secret\"\n\
         allow_http = true\ntimeout = 5\nweb_identity_token_file = \"/run/token\"\n\
         [pulls]\ntype = \"github\"\nrepository = \"a/b\"\ntoken = \"$${${SECRET}}\"\n\
         [state]\ndatabase = \"sqlite:///${SECRET}.db\"\n",
    );
    let (CatalogKind::Rest(a), CatalogKind::Rest(b)) = (&config.catalogs[0].kind, &config.catalogs[1].kind) else {
        panic!()
    };
    let secret = Secret::new(SECRET);
    let credential =
        AuthConfig::Credential { id: "id".into(), secret: secret.clone(), oauth2_server_uri: None, scope: "s".into() };
    assert_eq!((&a.auth, &b.auth), (&credential, &AuthConfig::Token(secret.clone())));
    assert_eq!(a.headers, [("x-api-key".to_owned(), secret.clone()), ("x-tenant".to_owned(), secret)].into());
    assert_eq!((a.vended_credentials, b.vended_credentials), (true, false));
    assert_eq!(a.ca, Some(CaFile { name: "ca.pem".into(), pem: CERTIFICATE.into() }));
    let options: BTreeMap<&str, &str> =
        config.storage["s3://b"].iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
    let expected = [
        ("access_key_id", SECRET),
        ("allow_http", "true"),
        ("secret_access_key", SECRET),
        ("timeout", "5"),
        ("web_identity_token_file", "/run/token"),
    ];
    assert_eq!(options, expected.into());
    assert_eq!(config.pulls.source.as_ref().unwrap().token.as_ref().unwrap().reveal(), "${hunter2}");
    assert_eq!(config.state.database.reveal(), "sqlite:///hunter2.db");
    assert!(!format!("{config:?}{config:#?}").contains(SECRET));
}

#[test]
fn variables_stand_in_any_text() {
    assert_eq!(good("[expire]\nolder_than = \"${AGE}12h\"").expire.older_than, Age::hours(60));
    let config = good("[[policy]]\ntables = [\"a.${AGE}\", \"$${AGE}\", \"$AGE$\"]");
    assert_eq!(config.policies[0].tables, ["a.2d", "${AGE}", "$AGE$"].map(Pattern::new));
}

#[test]
fn relative_places_are_beside_the_file() {
    for (database, expected) in [
        ("sqlite:///abs/x.db", "sqlite:///abs/x.db"),
        ("postgres://u:p@h:1/d?sslmode=require", "postgres://u:p@h:1/d?sslmode=require"),
        ("sqlite://./x.db", "sqlite:///a%25 b%23/conf/x.db"),
        ("sqlite://x.db?mode=rwc", "sqlite:///a%25 b%23/conf/x.db?mode=rwc"),
        ("sqlite://../y/./x.db", "sqlite:///a%25 b%23/y/x.db"),
    ] {
        let text = format!("[state]\ndatabase = \"{database}\"\n{CATALOG}");
        assert_eq!(parse_in("/a% b#/conf", &text).unwrap().0.state.database.reveal(), expected);
    }
    for (plans, expected) in [
        ("file:///abs/x", "file:///abs/x"),
        ("file:/abs/x", "file:/abs/x"),
        ("/abs/x", "file:///abs/x"),
        ("file:x", "file:///a% b#/conf/x"),
        ("file:./x/", "file:///a% b#/conf/x"),
        ("file://./x", "file:///a% b#/conf/x"),
        ("file://../x", "file:///a% b#/x"),
        ("file:.", "file:///a% b#/conf"),
        ("s3a://b/x", "s3a://b/x"),
    ] {
        let text = format!("[state]\nplans = \"{plans}\"\n{CATALOG}");
        assert_eq!(parse_in("/a% b#/conf", &text).unwrap().0.state.plans, expected, "{plans}");
    }
}

#[test]
fn stores_and_places_are_canonical() {
    let config = good(
        "[locations]\nschemes = { OSS = \"s3a\", s3n = \"s3\" }\nauthorities = { old = \"new\" }\n\
         [storage.\"oss://old/\"]\nregion = \"r\"",
    );
    assert_eq!(config.locations.schemes, [("oss".to_owned(), "s3".to_owned())].into());
    assert_eq!(config.storage.keys().collect::<Vec<_>>(), ["s3://new"]);
}

#[test]
fn patterns_without_a_table_are_warned_of() {
    let config = good(
        "[[policy]]\ntables = [\"sals.*\"]\n[[policy]]\ntables = [\"sales.*\", \"x\", \"y\"]\n[[schedule]]\njob = \
         \"sweep\"\ncron = \"0 3 * * *\"\n[[schedule]]\njob = \"sweep\"\ncron = \"0 3 * * *\"\ntables = [\"z\"]",
    );
    let table = TableName { catalog: "lake".into(), namespace: vec!["sales".into()], name: "orders".into() };
    let found: Vec<String> = config.unmatched_patterns(&[table]).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "c.toml:2:10  policy tables = [\"sals.*\"] matches no table of any catalog (hint: icewarden tables)      \
             (warning)",
            "c.toml:4:10  policy tables = [\"x\", \"y\"] matches no table of any catalog (hint: icewarden tables)      \
             (warning)",
            "c.toml:11:10  schedule tables = [\"z\"] matches no table of any catalog (hint: icewarden tables)      \
             (warning)",
        ]
    );
}

#[test]
fn the_file_is_found_by_argument_then_environment_then_place() {
    let env = |name: &str| (name == "ICEWARDEN_CONFIG").then(|| "/env.toml".to_owned());
    assert_eq!(find(Some("/cli.toml".into()), &env), Path::new("/cli.toml"));
    assert_eq!(find(None, &env), Path::new("/env.toml"));
    assert_eq!(find(None, &|_| Some(String::new())), Path::new("/etc/icewarden/icewarden.toml"));
    assert_eq!(find(None, &|_| None), Path::new("/etc/icewarden/icewarden.toml"));
}

#[test]
fn a_file_is_loaded_with_what_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let text = "[[catalog]]\nname = \"a\"\ntype = \"rest\"\nuri = \"https://x\"\ntoken_file = \"t\"\n[state]\nplans = \
                \"file:plans\"";
    std::fs::write(&path, text).unwrap();
    std::fs::write(folder.path().join("t"), "hunter2\r\n").unwrap();
    let (config, _) = Config::load(&path).unwrap();
    let CatalogKind::Rest(rest) = &config.catalogs[0].kind else { panic!() };
    assert_eq!(rest.auth, AuthConfig::Token(Secret::new(SECRET)));
    assert_eq!(config.state.plans, format!("file://{}/plans", folder.path().display()));

    let missing = folder.path().join("nope.toml");
    assert_eq!(
        Config::load(&missing).unwrap_err().to_string(),
        format!(
            "cannot read the configuration {}: No such file or directory (os error 2) (hint: name it with --config FILE \
             or ICEWARDEN_CONFIG)",
            missing.display()
        )
    );
}

proptest! {
    /// Texts one edit or a few away from a good file, where a parser that guesses goes wrong.
    #[test]
    fn no_text_makes_reading_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..12, "[\\[\\]{}=\"'.,#$\\n a0é-]{0,4}"), 1..6),
        is_enabled in any::<bool>(),
    ) {
        let shipped: Vec<&str> = SHIPPED
            .lines()
            .map(|line| if is_enabled && !line.starts_with("# ") { line.trim_start_matches('#') } else { line })
            .collect();
        let mut text: Vec<char> = shipped.join("\n").chars().collect();
        for (at, removed, inserted) in edits {
            let from = at.index(text.len());
            let to = (from + removed).min(text.len());
            text.splice(from..to, inserted.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = parse(&text) {
            let ConfigError::Invalid { problems, .. } = &error else { panic!("{error}") };
            prop_assert!(problems.iter().any(|problem| problem.severity == Severity::Error));
            let lines = text.split('\n').count();
            prop_assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.at.line)), "{error}");
        }
    }

    #[test]
    fn no_cron_line_makes_checking_panic(line in "[0-9*/,#LW?+@A-Z é-]{0,20}") {
        let _checked = cron::check(&line).is_ok();
    }
}

#[test]
fn keys_whose_job_comes_later_are_warned_of_where_somebody_may_rely_on_them() {
    let text =
        "[[policy]]\ntables = [\"*\"]\nrefs = [{ name = \"keep_*\", protected = true, on_pr_closed = \"drop\" }]\n";
    let (_, warnings) = parse(&format!("{text}\n{CATALOG}")).unwrap();
    assert_eq!(warnings.len(), 1, "the others count: {warnings:?}");
    assert!(warnings[0].to_string().contains("3:61  on_pr_closed comes with a later version"), "{}", warnings[0]);
}
