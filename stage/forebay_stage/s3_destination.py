"""A prefix of an S3 bucket as destination, through the AWS SDK.

Each request body is signed with its SHA-256, so every store that speaks signature 4 refuses a body that was changed on the way. The SDK's
newer checksums would need trailers, which older stores keep as part of the object. Files go up in parts that are read from the file: memory
does not grow with the shard, and a killed upload leaves nothing under the name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as sdk
from botocore.config import Config

from forebay_proxy.origins.cloud.s3_request import is_aws
from forebay_proxy.origins.net.allow_list import place_of
from forebay_stage.errors import DestinationFailed
from forebay_stage.read_back import check_same
from forebay_stage.stage_lock import Noted, StageLock

__all__ = ["S3Destination"]

log = logging.getLogger("forebay")

Answer = TypeVar("Answer")

_PARTS = TransferConfig(multipart_threshold=64 << 20, multipart_chunksize=16 << 20, max_concurrency=4)
_BODY_TRIES = 3  # the SDK asks again for an answer, not for the rest of a body
_NO_ROOM = frozenset(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull"))
_OTHER_REGION = frozenset(("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"))
_RIGHTS = "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket and s3:AbortMultipartUpload"
_NOT_SAME = (404, 409, 412)  # the answers of a store whose object has another tag: 404 it has gone, 409 two write at once


@dataclass(frozen=True, slots=True)
class S3Destination:
    """The ``Destination`` below ``prefix``, which ends with a slash. "" leaves endpoint, profile and region to the SDK's own chain."""

    bucket: str
    prefix: str
    endpoint: str = ""
    profile: str = ""
    region: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix.rstrip('/')}"

    def put_file(self, name: str, path: Path) -> int:
        with self._mapped(name):
            self._client.upload_file(str(path), self.bucket, self.prefix + name, Config=_PARTS)
            head = self._client.head_object(**self._key(name))
        tag = head["ETag"]
        return check_same(
            f"{self}/{name}", path, head["ContentLength"], lambda at, length: self._body(name, Range=_range(at, length), IfMatch=tag)[0]
        )

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> bool:
        if only_new:
            return self.swap(name, data, "")
        with self._mapped(name):
            self._client.put_object(**self._key(name), Body=data)
            return True

    def get(self, name: str) -> bytes | None:
        found = _or_none(lambda: self._body(name))
        return found[0] if found else None

    def size(self, name: str) -> int | None:
        def ask() -> int:
            with self._mapped(name):
                return int(self._client.head_object(**self._key(name))["ContentLength"])

        return _or_none(ask)

    def read(self, name: str, offset: int, length: int) -> bytes:
        data = self._body(name, Range=_range(offset, length))[0] if length else b""
        if len(data) != length:
            raise DestinationFailed(f"{self}/{name}: it ends {length - len(data)} bytes before byte {offset + length}")
        return data

    def names(self, below: str = "") -> Iterator[str]:
        """Every object whose name begins with ``below``, sorted; not the marker of an empty folder that consoles make."""
        with self._mapped(below):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + below):
                for found in page.get("Contents", ()):
                    if name := found["Key"][len(self.prefix) :]:
                        yield name

    def delete(self, name: str) -> None:
        with self._mapped(name):
            self._client.delete_object(**self._key(name))

    def lock(self) -> StageLock:
        return StageLock(self)

    def noted(self, name: str) -> Noted | None:
        found = _or_none(lambda: self._body(name))
        if found is None:
            return None
        data, answer = found
        now = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        age_s = (parsedate_to_datetime(now) - answer["LastModified"]).total_seconds() if now else 0.0
        return Noted(data, answer["ETag"], age_s)

    def swap(self, name: str, data: bytes, tag: str) -> bool:
        condition = {"IfMatch": tag.strip('"')} if tag else {"IfNoneMatch": "*"}
        with self._mapped(name):
            try:  # without quotes: Ceph compares the bare text, and the others take both
                self._client.put_object(**self._key(name), Body=data, **condition)
            except sdk.ClientError as error:
                if _status(error) == 501:  # no conditional writes: StageLock reads what became of its write
                    return self._swap_unguarded(name, data, tag)
                if _status(error) in _NOT_SAME and _code(error) != "NoSuchBucket":
                    return False
                raise
            return True

    def clear_torn(self) -> None:
        """End uploads that a killed stage left unfinished: they cost money, and nobody sees them."""
        try:
            with self._mapped("unfinished uploads"):
                for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.prefix):
                    for upload in page.get("Uploads", ()):
                        self._client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except DestinationFailed as failed:  # many stages have no right to list them, and can do without
            log.warning("Unfinished uploads of earlier stages stay where they are: %s", failed)

    def _swap_unguarded(self, name: str, data: bytes, tag: str) -> bool:
        noted = self.noted(name)
        if (noted.tag if noted else "") != tag:
            return False
        self._client.put_object(**self._key(name), Body=data)
        return True

    def _body(self, name: str, **how: str) -> tuple[bytes, Any]:
        """The body of an answer, and the answer."""
        with self._mapped(name):
            for _ in range(_BODY_TRIES - 1):
                with suppress(sdk.HTTPClientError, sdk.IncompleteReadError):
                    return self._body_once(name, how)
            return self._body_once(name, how)

    def _body_once(self, name: str, how: dict[str, str]) -> tuple[bytes, Any]:
        answer = self._client.get_object(**self._key(name), **how)
        with closing(answer["Body"]) as body:
            return body.read(), answer

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + name}

    @property
    def _client(self) -> Any:
        return _client(self.endpoint, self.profile, self.region)

    @contextmanager
    def _mapped(self, name: str) -> Iterator[None]:
        """Errors of the SDK become ``DestinationFailed``; texts are ours, because the SDK's may hold paths and URLs."""
        place = f"{self}/{name}"
        try:
            yield
        except S3UploadFailedError as error:
            raise self._refused(place, error.__context__) from error
        except sdk.ClientError as error:
            raise self._refused(place, error) from error
        except (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError, sdk.ProfileNotFound) as error:
            step = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile: ?profile=…"
            raise DestinationFailed(f"{place}: no usable AWS credentials ({type(error).__name__})", next_step=step) from error
        except (sdk.HTTPClientError, sdk.ConnectionError) as error:
            step = "check ?endpoint= and the network, and run the same command again: it continues with what is missing"
            raise DestinationFailed(f"{place}: the store did not answer ({type(error).__name__})", next_step=step) from error
        except (sdk.BotoCoreError, ValueError) as error:
            raise DestinationFailed(f"{place}: the AWS SDK cannot make this request ({type(error).__name__})") from error

    def _refused(self, place: str, error: BaseException | None) -> DestinationFailed:
        if not isinstance(error, sdk.ClientError):
            return DestinationFailed(f"{place}: the upload failed ({type(error).__name__})")
        code, status = _code(error), _status(error)
        if status == 412:  # only reading back has a condition that reaches this
            return DestinationFailed(f"{place}: someone changed the object while it was read back")
        kind = _NotThere if status == 404 and code != "NoSuchBucket" else DestinationFailed
        return kind(f"{place}: the store answers {status} {code}", next_step=self._step(code, status))

    def _step(self, code: str, status: int) -> str:
        if code in _NO_ROOM or status == 507:
            return "raise the quota, or delete other objects, and run the same command again: it continues with what is missing"
        if code == "NoSuchBucket":
            return f"make the bucket {self.bucket}, or correct DST"
        if code in _OTHER_REGION:
            return "name the bucket's region: ?region=…"
        if status in (401, 403):
            return f"give these credentials {_RIGHTS} on the bucket {self.bucket}, or name others: ?profile=…"
        return ""


class _NotThere(DestinationFailed):
    """There is no object of this name."""


def _or_none(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except _NotThere:
        return None


def _range(offset: int, length: int) -> str:
    return f"bytes={offset}-{offset + length - 1}"


def _code(error: sdk.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))[:64]


def _status(error: sdk.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@lru_cache(maxsize=4)
def _client(endpoint: str, profile: str, region: str) -> Any:
    """One client in a process, for all its threads: a client takes 20 to 180 ms to make."""
    session = boto3.Session(profile_name=profile or None)

    def made(**style: str) -> Any:
        own: Any = {"payload_signing_enabled": True, **style}
        config = Config(
            signature_version="s3v4",
            s3=own,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 6},
            connect_timeout=10,
            read_timeout=60,
        )
        return session.client("s3", region_name=region or None, endpoint_url=endpoint or None, config=config)

    client = made(addressing_style="path") if endpoint else made()
    if not endpoint and not is_aws(place_of(client.meta.endpoint_url)):  # few others serve a host name for each bucket
        client.close()
        client = made(addressing_style="path")
    return client
