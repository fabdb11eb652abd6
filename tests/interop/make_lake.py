"""Makes a small lake with pyiceberg: seven tables, 67 snapshots up to 30 days old, branches, tags, orphans.

    python make_lake.py DIR [--warehouse LOCATION] [--prop NAME=VALUE]... [--odd]

SQLite catalog DIR/catalog.db (catalog name "lake"), warehouse file://DIR/warehouse. A clock set back makes the times of
snapshots and logs real, and every file gets the time of the snapshot that wrote it. DIR/orphans.json lists the planted
orphans: table, path, age in days. A warehouse elsewhere, reached by properties such as s3.endpoint, has objects as old
as they are and no orphans. The property uri is the catalog's database, if not that file. --odd adds a table whose keys have to be quoted.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import time
import uuid
import warnings

import pyarrow as pa
import pyarrow.parquet as pq

warnings.filterwarnings("ignore")

# ---- A clock that can be set back; pyiceberg reads it in three ways.
real_time = time.time
offset = 0.0


class FakeDatetime(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return dt.datetime.fromtimestamp(real_time() + offset, tz)


class FakeDatetimeModule:
    datetime = FakeDatetime

    def __getattr__(self, name):
        return getattr(dt, name)


import pyiceberg.table.metadata  # noqa: E402
import pyiceberg.table.update  # noqa: E402

time.time = lambda: real_time() + offset
pyiceberg.table.metadata.datetime = FakeDatetimeModule()
pyiceberg.table.update.datetime = FakeDatetime


def at(days_ago):
    global offset
    offset = -days_ago * 86400.0


from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2  # noqa: E402
from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: E402
from pyiceberg.schema import Schema  # noqa: E402
from pyiceberg.table.snapshots import Operation  # noqa: E402
from pyiceberg.table.update.snapshot import _FastAppendFiles  # noqa: E402
from pyiceberg.transforms import DayTransform, IdentityTransform  # noqa: E402
from pyiceberg.types import LongType, NestedField, StringType, TimestampType  # noqa: E402

DAY_MS = 86_400_000
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()), NestedField(3, "note", StringType())
)
BY_DAY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="ts_day"))
next_id = 0


def rows(count, days_ago):
    global next_id
    ids = list(range(next_id, next_id + count))
    next_id += count
    day = dt.datetime.fromtimestamp(real_time() - days_ago * 86400).replace(microsecond=0)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "ts": pa.array([day] * count, pa.timestamp("us")),
        "note": pa.array([f"r{i}" for i in ids]),
    })


# ---- Positional deletes, which pyiceberg reads but cannot write: a fast append with a manifest of deletes.
class DeletesWriter(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


class RowDelta(_FastAppendFiles):
    def new_manifest_writer(self, spec):
        return DeletesWriter(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)


def add_position_deletes(table, data_file, positions):
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    fields = pa.schema([
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ])
    with table.io.new_output(path).create() as out:
        pq.write_table(pa.table([[data_file.file_path] * len(positions), positions], schema=fields), out)
    bounds = {2147483546: data_file.file_path.encode()}
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET,
        partition=data_file.partition, record_count=len(positions), file_size_in_bytes=len(table.io.new_input(path)),
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={}, lower_bounds=bounds,
        upper_bounds=bounds, key_metadata=None, split_offsets=None, equality_ids=None, sort_order_id=None,
    )
    deletes.spec_id = data_file.spec_id
    with table.transaction() as tx:
        delta = RowDelta(
            operation=Operation.DELETE, transaction=tx, io=table.io, snapshot_properties={}, branch="main"
        )
        delta.append_data_file(deletes)
        delta.commit()
    table.refresh()


# ---- The tables.
def make_orders(catalog):
    """Day partitions, 30 daily appends, branches pr_4812, pr_4813, audit and dev_alice, tags v1.0 and eom_old."""
    at(30)
    table = catalog.create_table("sales.orders", SCHEMA, partition_spec=BY_DAY, properties={
        "format-version": "2",
        "history.expire.max-snapshot-age-ms": str(7 * DAY_MS),
        "history.expire.min-snapshots-to-keep": "3",
        "write.metadata.previous-versions-max": "5",
        "write.metadata.delete-after-commit.enabled": "true",
    })
    retention = {
        "pr_4812": {"max_ref_age_ms": 7 * DAY_MS},
        "pr_4813": {"max_ref_age_ms": 7 * DAY_MS},
        "audit": {"max_snapshot_age_ms": 90 * DAY_MS, "min_snapshots_to_keep": 100},
        "dev_alice": {"max_ref_age_ms": 30 * DAY_MS, "max_snapshot_age_ms": DAY_MS, "min_snapshots_to_keep": 2},
    }

    def branch(name, snapshot):
        table.manage_snapshots().create_branch(snapshot, name, **retention[name]).commit()

    for day in range(30, 0, -1):
        at(day)
        table.append(rows(20, day))
        head = table.current_snapshot().snapshot_id
        if day == 28:
            branch("pr_4812", head)
        if day == 20:
            table.append(rows(5, day), branch="pr_4812")
            table.manage_snapshots().create_tag(head, "eom_old", max_ref_age_ms=10 * DAY_MS).commit()
        if day == 15:
            table.manage_snapshots().create_tag(head, "v1.0").commit()
        if day == 12:
            branch("audit", head)
        if day in (11, 10, 9):
            table.append(rows(3, day), branch="audit")
        if day == 8:
            branch("dev_alice", head)
        if day in (7, 6, 5, 4):
            table.append(rows(4, day), branch="dev_alice")
        if day == 3:
            branch("pr_4813", head)
            table.append(rows(6, day), branch="pr_4813")
    # A commit to a branch through pyiceberg drops the branch's retention: set it again on the same snapshot.
    for name in retention:
        branch(name, table.metadata.refs[name].snapshot_id)


def make_customers(catalog):
    """Copy-on-write deletes and an overwrite."""
    at(25)
    table = catalog.create_table("sales.customers", SCHEMA, properties={"format-version": "2"})
    for day in (25, 20, 15, 10, 5, 2):
        at(day)
        table.append(rows(50, day))
        if day in (20, 10):
            table.delete(f"id < {next_id - 25} and id >= {next_id - 50}")
        if day == 5:
            table.overwrite(rows(60, day))


def make_events(catalog):
    """Merge-on-read positional deletes."""
    at(20)
    table = catalog.create_table("ops.events", SCHEMA, partition_spec=BY_DAY, properties={"format-version": "2"})
    seen = set()
    for day in (20, 14, 9, 3):
        at(day)
        table.append(rows(30, day))
        table.refresh()
        added = next(f.file for f in table.scan().plan_files() if f.file.file_path not in seen)
        seen.add(added.file_path)
        add_position_deletes(table, added, [0, 2, 4])


def make_wap(catalog):
    """A staged snapshot, on no ref."""
    at(10)
    table = catalog.create_table("ops.wap", SCHEMA, properties={"format-version": "2", "write.wap.enabled": "true"})
    table.append(rows(10, 10))
    at(9)
    table.append(rows(10, 9))
    at(8)
    table.append(rows(7, 8), branch=None, snapshot_properties={"wap.id": "wap-0001"})
    at(1)
    table.append(rows(10, 1))


def make_plain(catalog, name, properties, days):
    at(30)
    table = catalog.create_table(name, SCHEMA, properties=properties)
    for day in days:
        at(day)
        table.append(rows(5, day))


ODD_NOTES = ["a/b", "new york", "1+1=2", "100%", "%2F", "\u00e9", "e\u0301", "日本", "~*'()!"]


def make_odd(catalog, warehouse):
    """Partitions and a folder with names that have to be quoted; all of the first snapshot's rows are replaced."""
    by_note = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="note"))
    location = f"{warehouse}/ops/odd + %2F é e\u0301&"
    at(10)
    table = catalog.create_table("ops.odd", SCHEMA, location, by_note, properties={"format-version": "2"})

    def odd_rows(days_ago):
        plain = rows(len(ODD_NOTES), days_ago)
        return plain.set_column(2, "note", pa.array(ODD_NOTES))

    table.append(odd_rows(10))
    at(2)
    table.overwrite(odd_rows(2))


# ---- What is on the disk.
def set_time(location, seconds):
    with contextlib.suppress(FileNotFoundError):
        os.utime(location.removeprefix("file://"), (seconds, seconds))


def age_files(table):
    for snapshot in table.metadata.snapshots:
        seconds = snapshot.timestamp_ms / 1000
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                set_time(manifest.manifest_path, seconds)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    if entry.snapshot_id == snapshot.snapshot_id and int(entry.status) == 1:
                        set_time(entry.data_file.file_path, seconds)
        set_time(snapshot.manifest_list, seconds)
    for log in table.metadata.metadata_log:
        set_time(log.metadata_file, log.timestamp_ms / 1000)


ORPHANS = [
    ("sales.orders", "data/ts_day=2026-01-01/00000-0-orphan-old.parquet", 20),
    ("sales.orders", "data/orphan with space %20+#=é.parquet", 20),
    ("sales.orders", "data/00000-0-young.parquet", 0.5),
    ("sales.orders", "metadata/snap-1-0-dead.avro", 20),
    ("sales.orders", "metadata/dead-m0.avro", 20),
    ("sales.orders", "metadata/00999-dead.metadata.json", 20),
    ("sales.orders", "data/_temporary/0/part-0.parquet", 20),
    ("sales.customers", "data/.part-1.parquet.crc", 20),
    ("sales.customers", "data/orphan-a.parquet", 4),
    ("ops.events", "data/orphan-deletes.parquet", 20),
    ("ops.frozen", "data/orphan-in-frozen.parquet", 20),
    ("ops.empty", "data/orphan-in-empty.parquet", 20),
]


def plant_orphans(catalog, root):
    planted = []
    for name, relative, days in ORPHANS:
        path = os.path.join(catalog.load_table(name).location().removeprefix("file://"), relative)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"PAR1orphan")
        set_time(path, real_time() - days * 86400)
        planted.append({"table": name, "path": path, "age_days": days})
    with open(f"{root}/orphans.json", "w") as file:
        json.dump(planted, file, indent=1, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--warehouse")
    parser.add_argument("--prop", action="append", default=[])
    parser.add_argument("--odd", action="store_true")
    args = parser.parse_args()
    root = os.path.abspath(args.dir)
    os.makedirs(root)
    warehouse = args.warehouse or f"file://{root}/warehouse"
    properties = dict(prop.split("=", 1) for prop in args.prop)
    catalog = SqlCatalog("lake", **{"uri": f"sqlite:///{root}/catalog.db", "warehouse": warehouse, **properties})
    for namespace in ("sales", "ops"):
        catalog.create_namespace(namespace)
    make_orders(catalog)
    make_customers(catalog)
    make_events(catalog)
    make_wap(catalog)
    make_plain(catalog, "ops.frozen", {"gc.enabled": "false"}, (30, 20, 10))
    make_plain(catalog, "ops.v1table", {"format-version": "1"}, (30, 20, 10))
    make_plain(catalog, "ops.empty", {}, ())
    if args.odd:
        make_odd(catalog, warehouse)
    at(0)
    if not args.warehouse:
        for namespace in ("sales", "ops"):
            for name in catalog.list_tables(namespace):
                age_files(catalog.load_table(name))
        plant_orphans(catalog, root)


if __name__ == "__main__":
    main()
