"""Reads every row of every snapshot of every table of a lake with pyiceberg.

    python read_rows.py DIR

Prints {table: {"refs": {name: snapshot id}, "snapshots": {snapshot id: "rows sha256"}}} as JSON.
"""

import hashlib
import json
import sys
import warnings

from pyiceberg.catalog.sql import SqlCatalog

warnings.filterwarnings("ignore")


def digest(table, snapshot_id):
    read = table.scan(snapshot_id=snapshot_id).to_arrow().sort_by("id")
    return f"{read.num_rows} {hashlib.sha256(repr(read.to_pylist()).encode()).hexdigest()}"


def main():
    root = sys.argv[1]
    catalog = SqlCatalog("lake", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    lake = {}
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            table = catalog.load_table(name)
            lake[".".join(name)] = {
                "refs": {ref: target.snapshot_id for ref, target in table.metadata.refs.items()},
                "snapshots": {s.snapshot_id: digest(table, s.snapshot_id) for s in table.metadata.snapshots},
            }
    json.dump(lake, sys.stdout)


main()
