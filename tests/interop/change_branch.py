"""What people do to branches, with pyiceberg.

    python change_branch.py DIR append TABLE BRANCH DAYS_AGO          its retention is lost, as pyiceberg does it
    python change_branch.py DIR create TABLE BRANCH SNAPSHOT MAX_REF_AGE_DAYS
    python change_branch.py DIR drop TABLE BRANCH
    python change_branch.py DIR show TABLE BRANCH                     the ref, as JSON
"""

import sys

import make_lake
from pyiceberg.catalog.sql import SqlCatalog


def main():
    folder, action, name, branch, *rest = sys.argv[1:]
    database, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    table = SqlCatalog("lake", uri=database, warehouse=warehouse).load_table(name)
    match action, rest:
        case "append", [days_ago]:
            make_lake.at(float(days_ago))
            table.append(make_lake.rows(2, float(days_ago)), branch=branch)
        case "create", [snapshot, days]:
            age = int(days) * make_lake.DAY_MS
            table.manage_snapshots().create_branch(int(snapshot), branch, max_ref_age_ms=age).commit()
        case "drop", []:
            table.manage_snapshots().remove_branch(branch).commit()
        case "show", []:
            pass
        case _:
            sys.exit(__doc__)
    ref = table.refresh().refs().get(branch)
    print(ref.model_dump_json(by_alias=True) if ref else "null")


main()
