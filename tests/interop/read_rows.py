"""Reads every row of every snapshot of every table of a lake with pyiceberg.

    python read_rows.py DIR|URI [--prop NAME=VALUE]... [--files]

Prints {table: {"refs": {name: snapshot id}, "snapshots": {snapshot id: "rows sha256"}}} as JSON, with --files also
"files": {snapshot id: [manifest list, manifests, live files]}, and "metadata": [the current metadata file, those of the
log]. Properties, such as s3.endpoint, tell how storage is reached. The lake of a URI is a REST catalog.
"""

import argparse
import hashlib
import json
import sys
import warnings

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

warnings.filterwarnings("ignore")


def digest(table, snapshot_id):
    read = table.scan(snapshot_id=snapshot_id).to_arrow().sort_by("id")
    return f"{read.num_rows} {hashlib.sha256(repr(read.to_pylist()).encode()).hexdigest()}"


def files(table, snapshot, read):
    """`read` holds the live files of the manifests that were read already."""
    manifests = snapshot.manifests(table.io)
    for manifest in manifests:
        if manifest.manifest_path not in read:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            read[manifest.manifest_path] = [entry.data_file.file_path for entry in entries]
    live = [file for manifest in manifests for file in read[manifest.manifest_path]]
    return [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests), *live]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--prop", action="append", default=[])
    parser.add_argument("--files", action="store_true")
    args = parser.parse_args()
    properties = dict(prop.split("=", 1) for prop in args.prop)
    if args.dir.startswith("http://"):
        catalog = load_catalog("lake", type="rest", uri=args.dir, **properties)
    else:
        database, warehouse = f"sqlite:///{args.dir}/catalog.db", f"file://{args.dir}/warehouse"
        catalog = SqlCatalog("lake", **{"uri": database, "warehouse": warehouse, **properties})
    lake = {}
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            table = catalog.load_table(name)
            found = lake[".".join(name)] = {
                "refs": {ref: target.snapshot_id for ref, target in table.metadata.refs.items()},
                "snapshots": {s.snapshot_id: digest(table, s.snapshot_id) for s in table.metadata.snapshots},
            }
            if args.files:
                read = {}
                found["files"] = {s.snapshot_id: files(table, s, read) for s in table.metadata.snapshots}
                log = [entry.metadata_file for entry in table.metadata.metadata_log]
                found["metadata"] = [table.metadata_location, *log]
    json.dump(lake, sys.stdout)


main()
