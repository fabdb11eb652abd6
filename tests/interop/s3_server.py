"""An S3 server in memory (moto) with one bucket, "lake", on a free port of the loopback; ends at the end of its stdin.

    python s3_server.py [ARCHIVE]

Prints "listening PORT". The bucket holds the objects of ARCHIVE, a zip of keys (see s3_objects.py), or an object for
each key of a JSON array in it: also such as no client sends as they are.
"""

import json
import logging
import sys
import zipfile

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket("lake", "us-east-1")
    if len(sys.argv) > 1 and sys.argv[1].endswith(".json"):
        with open(sys.argv[1], encoding="utf-8") as keys:
            for key in json.load(keys):
                backend.put_object("lake", key, f"near miss {key}".encode())
    elif len(sys.argv) > 1:
        with zipfile.ZipFile(sys.argv[1]) as archive:
            for key in archive.namelist():
                backend.put_object("lake", key, archive.read(key))
    print("listening", server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


main()
