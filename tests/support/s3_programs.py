"""Programs that read from S3, each as its own users write it: ``python s3_programs.py [[ENDPOINT, [NAME, ...]], ...]``, in JSON.

Run in the environment ``.venv-clients``. Each program has a bucket of its own (``bucket``) with ``a b+c/0.tar`` (each library encodes odd
names in its own way), ``plain.tar``, ``x.parquet`` and no ``none.tar``. Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Prints
as JSON, for each endpoint, of each program, what it read, how many bytes the sidecar fetched meanwhile, and how many it sent. The programs
share a process, since their libraries are imported for seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from typing import Any

KEY, TABLE, NONE = "a b+c/0.tar", "x.parquet", "none.tar"
Found = list[Any]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def bucket(program: str) -> str:
    """Its name may have no underscore."""
    return f"of-{program.replace('_', '-')}"


def boto(endpoint: str, bucket: str) -> Found:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    whole = client.get_object(Bucket=bucket, Key=KEY)
    part = client.get_object(Bucket=bucket, Key=KEY, Range="bytes=1000-1999")
    head = client.head_object(Bucket=bucket, Key=KEY)
    large = io.BytesIO()
    in_parts = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=1 << 20)
    client.download_fileobj(bucket, KEY, large, Config=in_parts)
    with contextlib.closing(client):
        return [
            sha(whole["Body"].read()), sha(part["Body"].read()), part["ContentRange"], head["ContentLength"], head["ETag"],
            head["LastModified"].isoformat(), sha(large.getvalue()),
        ]  # fmt: skip


def boto_missing(endpoint: str, bucket: str) -> Found:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    with contextlib.closing(client):
        try:
            client.get_object(Bucket=bucket, Key=NONE)
        except client.exceptions.NoSuchKey as error:
            return [error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]]
    return []


def boto_presigned(endpoint: str, bucket: str) -> Found:
    import urllib.request

    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    with contextlib.closing(client):
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": KEY})
    with urllib.request.urlopen(url, timeout=120) as answer:
        return [sha(answer.read())]


def refused(endpoint: str, bucket: str) -> Found:
    """Each operation's code, status and message."""
    import boto3
    from botocore.exceptions import ClientError

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    operations: list[Callable[[], Any]] = [
        lambda: client.list_objects_v2(Bucket=bucket),
        lambda: client.list_objects(Bucket=bucket, Prefix="a"),
        client.list_buckets,
        lambda: client.get_bucket_location(Bucket=bucket),
        lambda: client.get_object_tagging(Bucket=bucket, Key=KEY),
        lambda: client.get_object(Bucket=bucket, Key=KEY, PartNumber=1),
        lambda: client.head_bucket(Bucket=bucket),
        lambda: client.put_object(Bucket=bucket, Key="new", Body=b"x"),
        lambda: client.delete_object(Bucket=bucket, Key=KEY),
        lambda: client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": KEY}]}),
    ]
    found = []
    with contextlib.closing(client):
        for operation in operations:
            try:
                operation()
            except ClientError as error:
                said = error.response
                found.append([said["Error"]["Code"], said["ResponseMetadata"]["HTTPStatusCode"], said["Error"].get("Message", "")])
            else:
                found.append(["granted", 200, ""])
    return found


def s3fs(endpoint: str, bucket: str) -> Found:
    import s3fs as library

    fs = library.S3FileSystem(endpoint_url=endpoint, client_kwargs={"region_name": "us-east-1"}, skip_instance_cache=True)
    path = f"{bucket}/{KEY}"
    with fs.open(path, "rb", block_size=1 << 20) as file:
        file.seek(1000)
        piece = file.read(5000)
        file.seek(-10, 2)
        end = file.read()
    ranges = fs.cat_ranges([path] * 3, [0, 10, 2_000_000], [5, 20, 2_000_100])
    with fs.open(path, "rb") as file, tarfile.open(fileobj=file) as tar:
        names = [member.name for member in tar]
    return [sha(piece), sha(end), [sha(each) for each in ranges], sha(fs.cat(path)), fs.info(path)["size"], len(names), names[-1]]


def pyarrow(endpoint: str, bucket: str) -> Found:
    import pyarrow.fs as library
    import pyarrow.parquet as parquet

    scheme, _, rest = endpoint.partition("://")
    fs = library.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"], secret_key=os.environ["AWS_SECRET_ACCESS_KEY"], endpoint_override=rest, scheme=scheme,
        region="us-east-1", force_virtual_addressing=False,
    )  # fmt: skip
    with fs.open_input_file(f"{bucket}/{KEY}") as file:
        whole, piece = file.read(), file.read_at(500, 1000)
    table = parquet.read_table(f"{bucket}/{TABLE}", filesystem=fs, columns=["b"])
    return [sha(whole), sha(piece), fs.get_file_info(f"{bucket}/{KEY}").size, table.num_rows, sum(table.column("b").to_pylist())]


def pandas(endpoint: str, bucket: str) -> Found:
    import pandas as library

    options = {"endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    frame = library.read_parquet(f"s3://{bucket}/{TABLE}", storage_options=options)
    return [len(frame), int(frame["b"].sum())]


def duckdb(endpoint: str, bucket: str) -> Found:
    from importlib.util import find_spec
    from pathlib import Path

    import duckdb as library

    spec = find_spec("duckdb_extension_httpfs")
    assert spec is not None
    assert spec.origin is not None
    (extension,) = Path(spec.origin).parent.rglob("httpfs.duckdb_extension")
    scheme, _, rest = endpoint.partition("://")
    with library.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', "
            f"ENDPOINT '{rest}', URL_STYLE 'path', USE_SSL {str(scheme == 'https').lower()}, REGION 'us-east-1')"
        )
        rows = connection.execute(f"SELECT count(*), sum(b) FROM read_parquet('s3://{bucket}/{TABLE}') WHERE a >= 100").fetchall()
        blob = connection.execute(f"SELECT octet_length(content), sha256(content) FROM read_blob('s3://{bucket}/plain.tar')").fetchall()
    return [[int(value) for value in rows[0]], blob[0][0], blob[0][1]]


def s5cmd(endpoint: str, bucket: str) -> Found:
    program = os.path.join(os.path.dirname(sys.executable), "s5cmd")
    command = [program, "--endpoint-url", endpoint, "cat", f"s3://{bucket}/{KEY}"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=240, env={**os.environ, "AWS_REGION": "us-east-1"})
    return [sha(done.stdout), done.stderr.decode()[-500:]]


PROGRAMS: dict[str, Callable[[str, str], Found]] = {
    program.__name__: program for program in (boto, boto_missing, boto_presigned, refused, s3fs, pyarrow, pandas, duckdb, s5cmd)
}


if __name__ == "__main__":
    from sidecar_bytes import tell  # beside this file, where it runs

    tell(lambda endpoint, name: PROGRAMS[name](endpoint, bucket(name)), sys.argv[1])
