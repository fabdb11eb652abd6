"""Looks at a bucket of an S3 server from outside, and changes the bucket "lake".

    python s3_objects.py ENDPOINT list BUCKET        {key: "size tag"} as JSON; the tag is a digest of the content
    python s3_objects.py ENDPOINT after KEY          the keys of "lake" behind this one, as the server sees it, as JSON
    python s3_objects.py ENDPOINT save ARCHIVE       a zip of keys
    python s3_objects.py ENDPOINT load ARCHIVE       puts them back
    python s3_objects.py ENDPOINT put KEYS           writes each key of a JSON array; its content tells the key
    python s3_objects.py ENDPOINT put-file FILE      the same, the array in a file; {key: "size time tag"} as a client
                                                     that asks for each is told, as JSON
    python s3_objects.py ENDPOINT delete KEYS        deletes each key of a JSON array
    python s3_objects.py ENDPOINT versioning STATUS  Enabled or Suspended
    python s3_objects.py ENDPOINT versions           {key: number of versions and delete markers} as JSON
"""

import json
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config


def main():
    endpoint, act = sys.argv[1:3]
    s3 = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test",
        aws_secret_access_key="testtest", config=Config(s3={"addressing_style": "path"}),
    )

    def objects(bucket="lake"):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            yield from page.get("Contents", [])

    if act == "list":
        json.dump({found["Key"]: f"{found['Size']} {found['ETag']}" for found in objects(sys.argv[3])}, sys.stdout)
    elif act == "after":
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", StartAfter=sys.argv[3])
        json.dump([found["Key"] for page in pages for found in page.get("Contents", [])], sys.stdout)
    elif act == "save":
        with zipfile.ZipFile(sys.argv[3], "w") as archive:
            for found in objects():
                archive.writestr(found["Key"], s3.get_object(Bucket="lake", Key=found["Key"])["Body"].read())
    elif act == "load":
        with zipfile.ZipFile(sys.argv[3]) as archive, ThreadPoolExecutor(8) as pool:
            found = [(key, archive.read(key)) for key in archive.namelist()]
            list(pool.map(lambda one: s3.put_object(Bucket="lake", Key=one[0], Body=one[1]), found))
    elif act == "put":
        for key in json.loads(sys.argv[3]):
            s3.put_object(Bucket="lake", Key=key, Body=f"near miss {key}".encode())
    elif act == "put-file":
        keys = json.loads(open(sys.argv[3], encoding="utf-8").read())

        def put(key):
            s3.put_object(Bucket="lake", Key=key, Body=f"near miss {key}".encode())
            head = s3.head_object(Bucket="lake", Key=key)
            return key, f"{head['ContentLength']} {int(head['LastModified'].timestamp())} {head['ETag']}"

        with ThreadPoolExecutor(8) as pool:
            json.dump(dict(pool.map(put, keys)), sys.stdout)
    elif act == "versioning":
        s3.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": sys.argv[3]})
    elif act == "versions":
        found = {}
        for page in s3.get_paginator("list_object_versions").paginate(Bucket="lake"):
            for version in page.get("Versions", []) + page.get("DeleteMarkers", []):
                found[version["Key"]] = found.get(version["Key"], 0) + 1
        json.dump(found, sys.stdout)
    elif act == "delete":
        for key in json.loads(sys.argv[3]):
            s3.delete_object(Bucket="lake", Key=key)
    else:
        sys.exit(f"unknown: {act}")


main()
