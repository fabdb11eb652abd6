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

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError


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


def has_bucket(port):
    """Ports are open before the buckets are there."""
    s3 = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="test",
        aws_secret_access_key="testtest", config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    try:
        return bool(s3.head_bucket(Bucket="lake"))
    except (BotoCoreError, ClientError):
        return False


def has_table_bucket(port):
    rest = f"http://127.0.0.1:{port}/v1"
    form = {"grant_type": "client_credentials", "client_id": "test", "client_secret": "testtest", "scope": "catalog"}
    try:
        token = requests.post(f"{rest}/oauth/tokens", data=form, timeout=5).json().get("access_token")
        bearer = {"Authorization": f"Bearer {token}"}
        return requests.get(f"{rest}/ice/namespaces", headers=bearer, timeout=5).status_code == 200
    except (requests.RequestException, ValueError):
        return False


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
        while not (has_bucket(s3) and has_table_bucket(iceberg)):
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
