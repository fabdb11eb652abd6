"""SeaweedFS on free ports of the loopback: S3 with a bucket "lake", and an Iceberg REST catalog with OAuth2 over a table
bucket "ice". Ends, and removes its folder, at the end of its stdin.

    python seaweedfs.py

Prints "listening S3PORT RESTPORT". The key is test, the secret testtest, for both.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def free_ports(count):
    """Every server has a second port 10000 above."""
    held, ports = [], []
    while len(ports) < count:
        one, two = socket.socket(), socket.socket()
        held += [one, two]
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        if port + 10000 > 65535:
            continue
        try:
            two.bind(("127.0.0.1", port + 10000))
        except OSError:
            continue
        ports.append(port)
    for each in held:
        each.close()
    return ports


def is_ready(url):
    try:
        urllib.request.urlopen(url, timeout=1)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def main():
    folder = tempfile.mkdtemp(prefix="seaweedfs-", dir=os.environ.get("ICEWARDEN_SCRATCH"))
    master, volume, filer, s3, iceberg, admin = free_ports(6)
    log = open(f"{folder}/log", "wb")
    weed = subprocess.Popen(
        [
            pathlib.Path(sys.executable).parent / "weed", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.telemetry=false", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            f"-admin.port={admin}", f"-s3.port={s3}", f"-s3.port.iceberg={iceberg}", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false",
            "-bucket=lake", "-tableBucket=ice",
        ],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest"},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
    )
    try:
        end = time.monotonic() + 60
        for url in (f"http://127.0.0.1:{s3}/lake", f"http://127.0.0.1:{iceberg}/v1/config"):
            while not is_ready(url):
                if weed.poll() is not None or time.monotonic() > end:
                    sys.exit(pathlib.Path(f"{folder}/log").read_text())
                time.sleep(0.05)
        print("listening", s3, iceberg, flush=True)
        sys.stdin.read()
    finally:
        weed.kill()
        weed.wait()
        shutil.rmtree(folder, ignore_errors=True)


main()
