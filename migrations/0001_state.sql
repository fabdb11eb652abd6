-- Times are milliseconds since the epoch. Table names are three columns: catalog, namespace (a JSON array of its
-- levels, because a level may hold a dot), table_name. One text for SQLite and PostgreSQL: types are TEXT and BIGINT.

CREATE TABLE runs (
    id          TEXT   NOT NULL PRIMARY KEY,
    job         TEXT   NOT NULL,
    actor       TEXT   NOT NULL,
    started_at  BIGINT NOT NULL,
    request     TEXT   NOT NULL,
    finished_at BIGINT,
    outcome     TEXT,
    report      TEXT
);
CREATE INDEX runs_by_time ON runs (started_at);

-- A plan id is 32 bits of a hash: alone it does not tell plans of all times and tables apart.
CREATE TABLE plans (
    id         TEXT   NOT NULL,
    run        TEXT   NOT NULL,
    catalog    TEXT   NOT NULL,
    namespace  TEXT   NOT NULL,
    table_name TEXT   NOT NULL,
    uuid       TEXT   NOT NULL,
    job        TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    refused_by TEXT,
    header     TEXT   NOT NULL,
    location   TEXT,
    PRIMARY KEY (id, run, uuid)
);

CREATE TABLE confirmations (
    plan         TEXT   NOT NULL,
    catalog      TEXT   NOT NULL,
    namespace    TEXT   NOT NULL,
    table_name   TEXT   NOT NULL,
    uuid         TEXT   NOT NULL,
    job          TEXT   NOT NULL,
    bound        TEXT   NOT NULL,
    actor          TEXT   NOT NULL,
    confirmed_at BIGINT NOT NULL,
    until        BIGINT NOT NULL,
    PRIMARY KEY (uuid, job, plan)
);

CREATE TABLE intents (
    id                     TEXT   NOT NULL PRIMARY KEY,
    catalog                TEXT   NOT NULL,
    namespace              TEXT   NOT NULL,
    table_name             TEXT   NOT NULL,
    uuid                   TEXT   NOT NULL,
    run                    TEXT   NOT NULL,
    base_metadata_location TEXT   NOT NULL,
    base_last_updated      BIGINT NOT NULL,
    removed_refs           TEXT   NOT NULL,
    removed_snapshots      TEXT   NOT NULL,
    inputs                 TEXT   NOT NULL,
    list_location          TEXT   NOT NULL,
    list_sha256            TEXT   NOT NULL,
    list_objects           BIGINT NOT NULL,
    list_bytes             BIGINT NOT NULL,
    created_at             BIGINT NOT NULL,
    closed                 TEXT,
    closed_at              BIGINT
);
CREATE INDEX intents_by_table ON intents (uuid, closed);

CREATE TABLE mark_lists (
    id                   TEXT   NOT NULL PRIMARY KEY,
    catalog              TEXT   NOT NULL,
    namespace            TEXT   NOT NULL,
    table_name           TEXT   NOT NULL,
    uuid                 TEXT   NOT NULL,
    run                  TEXT   NOT NULL,
    plan                 TEXT   NOT NULL,
    job                  TEXT   NOT NULL,
    created_at           BIGINT NOT NULL,
    due_at               BIGINT NOT NULL,
    metadata_location    TEXT   NOT NULL,
    last_sequence_number BIGINT NOT NULL,
    last_updated         BIGINT NOT NULL,
    list_location        TEXT   NOT NULL,
    list_sha256          TEXT   NOT NULL,
    list_objects         BIGINT NOT NULL,
    list_bytes           BIGINT NOT NULL,
    status               TEXT   NOT NULL,
    note                 TEXT,
    closed_at            BIGINT
);
CREATE INDEX mark_lists_by_due ON mark_lists (status, due_at);
CREATE INDEX mark_lists_by_table ON mark_lists (uuid);

CREATE TABLE keeps (
    location TEXT   NOT NULL PRIMARY KEY,
    actor      TEXT   NOT NULL,
    reason   TEXT   NOT NULL,
    kept_at  BIGINT NOT NULL
);

CREATE TABLE holds (
    scope   TEXT   NOT NULL PRIMARY KEY,
    actor     TEXT   NOT NULL,
    reason  TEXT   NOT NULL,
    held_at BIGINT NOT NULL
);

CREATE TABLE findings (
    id                 TEXT   NOT NULL PRIMARY KEY,
    kind               TEXT   NOT NULL,
    subject            TEXT   NOT NULL,
    ref_name           TEXT   NOT NULL,
    catalog            TEXT   NOT NULL,
    namespace          TEXT   NOT NULL,
    table_name         TEXT   NOT NULL,
    uuid               TEXT,
    severity           TEXT   NOT NULL,
    numbers            TEXT   NOT NULL,
    message            TEXT   NOT NULL,
    advice             TEXT   NOT NULL,
    first_seen         BIGINT NOT NULL,
    last_seen          BIGINT NOT NULL,
    acknowledged_until BIGINT,
    acknowledged_by    TEXT,
    closed_at          BIGINT,
    UNIQUE (kind, subject, ref_name)
);

-- seq counts up without a gap; rows are added by one writer at a time.
CREATE TABLE audit (
    seq        BIGINT  NOT NULL PRIMARY KEY,
    at         BIGINT  NOT NULL,
    actor      TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    catalog    TEXT,
    namespace  TEXT,
    table_name TEXT,
    plan       TEXT,
    run        TEXT,
    outcome    TEXT    NOT NULL,
    detail     TEXT    NOT NULL
);
CREATE INDEX audit_by_time ON audit (at);

-- A row stays when its lease ends: the next token must be higher than every token before it.
CREATE TABLE leases (
    name        TEXT   NOT NULL PRIMARY KEY,
    token       BIGINT NOT NULL,
    boot        TEXT   NOT NULL,
    lock_file   TEXT   NOT NULL,
    pid         BIGINT NOT NULL,
    what        TEXT   NOT NULL,
    acquired_at BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    released    BIGINT NOT NULL
);

CREATE TABLE roots (
    catalog           TEXT   NOT NULL,
    namespace         TEXT   NOT NULL,
    table_name        TEXT   NOT NULL,
    metadata_location TEXT   NOT NULL,
    uuid              TEXT,
    roots             TEXT   NOT NULL,
    PRIMARY KEY (catalog, namespace, table_name)
);

-- Catalogs that were listed at least once: one that never was says nothing about whose folders its tables share.
-- orphan_tables: the tables that it had at its last orphan run.
CREATE TABLE catalogs (
    name          TEXT   NOT NULL PRIMARY KEY,
    listed_at     BIGINT NOT NULL,
    orphan_tables TEXT
);

-- The folders of others in which tables have files; list_…: the manifests that were read for it.
CREATE TABLE borders (
    catalog           TEXT   NOT NULL,
    namespace         TEXT   NOT NULL,
    table_name        TEXT   NOT NULL,
    metadata_location TEXT,
    outside           TEXT   NOT NULL,
    list_location     TEXT   NOT NULL,
    list_sha256       TEXT   NOT NULL,
    list_objects      BIGINT NOT NULL,
    list_bytes        BIGINT NOT NULL,
    PRIMARY KEY (catalog, namespace, table_name)
);

-- What is remembered of the refs of each table, as JSON: since when each was seen, its retention, where it left main;
-- and those that are gone.
CREATE TABLE ref_memory (
    catalog TEXT NOT NULL,
    uuid    TEXT NOT NULL,
    memory  TEXT NOT NULL,
    PRIMARY KEY (catalog, uuid)
);
