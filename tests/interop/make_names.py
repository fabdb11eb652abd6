"""Makes a lake whose namespaces, tables and branches have odd names, with pyiceberg, in DIR/catalog.db.

    python make_names.py DIR

Each table has five snapshots, seconds old: four of main, the second of which is also the head of a branch "keep NAME",
and one of a branch "drop NAME" whose age is over at once. Folders have plain names.
"""

import os
import sys
import warnings

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

warnings.filterwarnings("ignore")

NAMES = ["with space", "a/b", "c#d", "50%", "%2F", "\u00e9", "e\u0301", "x.y", "it's \"q\"", "a+b&c=d?e", "日本;:@,\\"]


def main():
    root = os.path.abspath(sys.argv[1])
    os.makedirs(root)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    schema = pa.schema([("id", pa.int64())])
    for at, namespace in enumerate(NAMES):
        name = NAMES[(at + 3) % len(NAMES)]
        # A dot parts the levels of a namespace in the JDBC layout.
        levels = tuple(namespace.split("."))
        for depth in range(1, len(levels) + 1):
            catalog.create_namespace(levels[:depth])
        table = catalog.create_table((*levels, name), schema, f"file://{root}/warehouse/t{at}")

        def append(count, branch="main"):
            rows = pa.table({"id": list(range(count))}, schema=schema)
            table.append(rows, branch=branch)

        append(1)
        append(2)
        base = table.current_snapshot().snapshot_id
        for word, retention in (("keep", {}), ("drop", {"max_ref_age_ms": 1})):
            branch = f"{word} {namespace}"
            table.manage_snapshots().create_branch(base, branch).commit()
            if word == "drop":
                append(7, branch)
                head = table.metadata.refs[branch].snapshot_id
                table.manage_snapshots().create_branch(head, branch, **retention).commit()
        append(3)
        append(4)


main()
