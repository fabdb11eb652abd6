"""Commits to the table live.t of a lake, over and over, until the end of its stdin.

    python keep_writing.py DIR [--old] [--crash-after N]

Appends, deletes, overwrites, and expires all but three snapshots now and then, in metadata only as pyiceberg does: what
they leave are orphans. With --old, each file is an hour old before its commit, so that its age protects it no more, and the
commit comes a quarter of a second later, so that others can come between. After
N commits it dies between writing the files of a commit and the commit.

Prints "committed SNAPSHOT ROWS MILLISECONDS", the last from its oldest file to the end of the commit, and at a crash
"crashed FILE" for each file that is left.
"""

import argparse
import os
import random
import sys
import threading
import time
import warnings

import make_lake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

warnings.filterwarnings("ignore")


def files(root):
    return {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}


class Watched(SqlCatalog):
    """Knows the files that a commit has written before it is made."""

    seen: set = set()
    old = False
    crash = False

    def commit_table(self, table, requirements, updates):
        root = table.location().removeprefix("file://")
        new = files(root) - self.seen
        times = []
        for file in new:
            times.append(os.stat(file).st_mtime)
            if self.old:
                os.utime(file, (times[-1] - 3600, times[-1] - 3600))
        if self.crash and new:
            for file in sorted(new):
                print("crashed", file)
            sys.stdout.flush()
            os._exit(9)
        if self.old:
            time.sleep(0.25)
        try:
            return super().commit_table(table, requirements, updates)
        finally:
            self.seen = files(root)
            self.took = round((make_lake.real_time() - min(times)) * 1000) if times else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--crash-after", type=int)
    args = parser.parse_args()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    catalog = Watched("lake", uri=f"sqlite:///{args.dir}/catalog.db", warehouse=f"file://{args.dir}/warehouse")
    catalog.old = args.old
    if ("live",) not in catalog.list_namespaces():
        catalog.create_namespace("live")
        catalog.create_table("live.t", make_lake.SCHEMA, properties={
            "write.metadata.previous-versions-max": "3", "write.metadata.delete-after-commit.enabled": "true",
        })
    table = catalog.load_table("live.t")
    # Rows that are told apart from those of an earlier process.
    make_lake.next_id = int(time.time() * 1000)
    count = table.scan().to_arrow().num_rows
    commits = 0
    while not ended.is_set():
        catalog.crash = args.crash_after is not None and commits >= args.crash_after
        catalog.seen = files(table.location().removeprefix("file://"))
        added = random.randint(1, 5)
        try:
            if commits % 10 == 9:
                # All but the newest three, by id; their files stay.
                kept = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)[-3:]
                gone = [s.snapshot_id for s in table.metadata.snapshots if s not in kept]
                if gone:
                    table.maintenance.expire_snapshots().by_ids(gone).commit()
                added = 0
            elif commits % 150 == 148:
                table.overwrite(make_lake.rows(added, 0))
                count = added
            elif commits % 10 == 5 and count > 1:
                table.delete(f"id == {make_lake.next_id - 1}")
                count -= 1
            else:
                table.append(make_lake.rows(added, 0))
                count += added
        except CommitFailedException:
            count = table.refresh().scan().to_arrow().num_rows
            continue
        table.refresh()
        commits += 1
        if added:
            print("committed", table.current_snapshot().snapshot_id, count, catalog.took, flush=True)


main()
