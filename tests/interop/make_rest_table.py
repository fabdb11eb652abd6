"""Makes the table db.t in a REST catalog with pyiceberg: seven snapshots, a branch `dev` of one commit, a tag `v1`.

    python make_rest_table.py URI [--prop NAME=VALUE]...

Its snapshots are as old as they are: servers refuse commits of the past.
"""

import argparse
import warnings

import pyarrow as pa
from pyiceberg.catalog import load_catalog

warnings.filterwarnings("ignore")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("--prop", action="append", default=[])
    parser.add_argument("--plain", action="store_true", help="no branch and no tag, where the server has none")
    args = parser.parse_args()
    properties = dict(prop.split("=", 1) for prop in args.prop)
    catalog = load_catalog("lake", type="rest", uri=args.uri, **properties)
    catalog.create_namespace("db")
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table("db.t", schema=schema)
    for day in range(6):
        table.append(pa.table({"id": [day, day + 100]}, schema=schema))
        head = table.current_snapshot().snapshot_id
        if day == 2 and not args.plain:
            table.manage_snapshots().create_branch(head, "dev").commit()
            table.append(pa.table({"id": [1000]}, schema=schema), branch="dev")
        if day == 3 and not args.plain:
            table.manage_snapshots().create_tag(head, "v1").commit()


main()
