"""What pyiceberg does in a catalog in PostgreSQL, the SQLAlchemy address of which is URI.

    python postgres.py DIR URI                      registers every table of the lake DIR there
    python postgres.py DIR URI TABLE TAG SNAPSHOT   sets a tag
"""

import sys
import warnings

from pyiceberg.catalog.sql import SqlCatalog

warnings.filterwarnings("ignore")


def main():
    root, uri, *tag = sys.argv[1:]
    warehouse = f"file://{root}/warehouse"
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    if tag:
        table, name, snapshot = tag
        catalog.load_table(table).manage_snapshots().create_tag(int(snapshot), name).commit()
        return
    lake = SqlCatalog("lake", uri=f"sqlite:///{root}/catalog.db", warehouse=warehouse)

    def register(parent):
        for namespace in lake.list_namespaces(parent):
            catalog.create_namespace(namespace)
            for name in lake.list_tables(namespace):
                catalog.register_table(name, lake.load_table(name).metadata_location)
            register(namespace)

    register(())


main()
