"""The objects of the shared tier. Bytes are read by the sidecar's own client; what is written goes by the AWS SDK, in threads of its own.

The SDK blocks, so each call has a short timeout, no retry, and a thread: two for small objects, one for shards, which take long. The
SDK's timeouts are of one step of a call; how long a caller waits for a small one is the caller's to say.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import xxhash

from forebay_proxy.config.shared_place import SharedPlace
from forebay_proxy.core.errors import ShardNotFound
from forebay_proxy.core.shard import ByteRange, Pin, PinKind
from forebay_proxy.origins.base import Origin, OriginBody

__all__ = ["MOST_BYTES", "SharedStore", "StoreRefused"]

T = TypeVar("T")

MOST_BYTES = 5 << 30  # that S3 takes in one PUT; shards are smaller
SMALL_TIMEOUT_S = 2.0
_MANIFEST_BYTES = 1 << 20  # twelve times that of the largest shard in segments of 64 KiB; a larger object is none of ours
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
_EXISTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


class StoreRefused(Exception):
    """A write was refused. ``reason``: refused (rights), full (quota), unavailable, timeout; file: our own disk has other bytes."""

    def __init__(self, reason: str, cause: str) -> None:
        super().__init__(cause)
        self.reason = reason


class SharedStore:
    """Reads raise the ``ShardError`` family, writes ``StoreRefused``."""

    def __init__(self, place: SharedPlace, s3: Origin) -> None:
        self.place = place
        self._s3 = s3
        self._small = ThreadPoolExecutor(2, thread_name_prefix="forebay-shared")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="forebay-shared-put")
        self._client: Any = None
        self._ending = threading.Event()

    def __repr__(self) -> str:
        return f"<SharedStore {self.place}>"

    def read(self, name: str, want: ByteRange, etag: str) -> AbstractAsyncContextManager[OriginBody]:
        """As ``Origin.read``."""
        return self._s3.read(self.place.shard(name), want, Pin(PinKind.ETAG, etag))

    async def get(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        try:
            async with self._s3.read(self.place.shard(name), None, Pin()) as body:
                data = bytearray()
                async for piece in body.chunks:
                    data += piece
                    if len(data) > _MANIFEST_BYTES:
                        break
                return bytes(data)
        except ShardNotFound:
            return None

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.wrap_future(self._begun(lambda client: self._put(client, name, data, {})))

    async def take(self, name: str, data: bytes, instead: str = "") -> bool:
        """Make the object ``name``, if there is none, or ``instead`` of the one with this ETag. Whether it was made.

        Who is cancelled meanwhile leaves none behind.
        """
        how = {"IfMatch": instead.strip('"')} if instead else {"IfNoneMatch": "*"}  # without quotes: the RADOS gateway compares it so
        taking = self._begun(lambda client: self._put(client, name, data, how))

        def unwanted(taken: Future[bool]) -> None:
            if not taken.cancelled() and taken.exception() is None and taken.result():
                with suppress(StoreRefused):
                    self._begun(lambda client: self._delete(client, name))

        try:
            return await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(unwanted)
            raise

    async def age(self, name: str) -> tuple[float, str] | None:
        """How many seconds ago it was written, by the store's own clock, and its ETag; None where there is none."""

        def call(client: Any) -> tuple[float, str] | None:
            try:
                said = client.head_object(Bucket=self.place.bucket, Key=self.place.key(name))
                now = parsedate_to_datetime(said["ResponseMetadata"]["HTTPHeaders"]["date"])
                return float((now - said["LastModified"]).total_seconds()), str(said["ETag"])
            except Exception as error:
                if _code(error) in _ABSENT:
                    return None
                raise _refusal(error) from error

        return await asyncio.wrap_future(self._begun(call))

    async def delete(self, name: str) -> None:
        await asyncio.wrap_future(self._begun(lambda client: self._delete(client, name)))

    def _put(self, client: Any, name: str, data: bytes, how: dict[str, str]) -> bool:
        try:
            client.put_object(Bucket=self.place.bucket, Key=self.place.key(name), Body=data, **how)
        except Exception as error:
            if how and _code(error) in _EXISTS:
                return False
            if "IfMatch" in how and (_code(error) in _ABSENT or _status(error) == 500):
                return False  # gone meanwhile; or, says the RADOS gateway, written by another at the same time
            raise _refusal(error) from error
        return True

    def _delete(self, client: Any, name: str) -> None:
        try:
            client.delete_object(Bucket=self.place.bucket, Key=self.place.key(name))
        except Exception as error:
            raise _refusal(error) from error

    async def put_shard(self, name: str, descriptor: int, length: int, segment_bytes: int, sums: Sequence[int]) -> str:
        """Write a shard's bytes from its file; returns the object's ETag. What differs from its checksum on the way is not written.

        The thread has a descriptor of its own, and with it the kernel's lease: it may outlast who asked.
        """
        held = os.dup(descriptor)

        def call(client: Any) -> str:
            body = _CheckedFile(held, length, segment_bytes, sums, self._ending)
            try:
                said = client.put_object(Bucket=self.place.bucket, Key=self.place.key(name), Body=body, ContentLength=length)
            except Exception as error:
                raise (StoreRefused("file", "the shard's file has other bytes") if body.wrong else _refusal(error)) from error
            return str(said["ETag"])

        try:
            writing = self._begun(call, self._large)
        except StoreRefused:
            os.close(held)
            raise
        writing.add_done_callback(lambda _: os.close(held))
        return await asyncio.wrap_future(writing)

    def close(self) -> None:
        """A shard that is being written stays unwritten. No caller waits for a thread; each ends with its call's timeout."""
        self._ending.set()
        self._small.shutdown(wait=False, cancel_futures=True)
        self._large.shutdown(wait=False, cancel_futures=True)

    def _begun(self, call: Callable[[Any], T], pool: ThreadPoolExecutor | None = None) -> Future[T]:
        try:
            return (pool or self._small).submit(lambda: call(self._opened()))
        except RuntimeError as error:  # closed
            raise StoreRefused("unavailable", "the sidecar is shutting down") from error

    def _opened(self) -> Any:
        """The client, which threads may share. Two that make it at once make two, of which one stays."""
        if self._client is None:
            import boto3  # noqa: PLC0415  (loads the SDK: 30 MB and a third of a second)
            from botocore.config import Config  # noqa: PLC0415

            options = self.place.options
            config = Config(
                connect_timeout=SMALL_TIMEOUT_S, read_timeout=4 * SMALL_TIMEOUT_S, retries={"total_max_attempts": 1, "mode": "standard"},
                request_checksum_calculation="when_required", s3={"addressing_style": "path" if "endpoint" in options else "auto"},
            )  # fmt: skip
            try:
                self._client = boto3.Session(profile_name=options.get("profile") or None).client(
                    "s3", endpoint_url=options.get("endpoint") or None, region_name=options.get("region") or None, config=config
                )
            except Exception as error:
                raise _refusal(error) from error
        return self._client


class _CheckedFile:
    """A shard's file as the SDK reads a body: by ``read``, ``seek`` and ``tell``. Raises ``OSError`` where a segment has other bytes."""

    def __init__(self, descriptor: int, length: int, segment_bytes: int, sums: Sequence[int], ending: threading.Event) -> None:
        self.wrong = False
        self._ending = ending
        self._descriptor = descriptor
        self._length, self._segment_bytes, self._sums = length, segment_bytes, sums
        self._at = 0
        self._hasher = xxhash.xxh3_64()

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        if self._ending.is_set():
            raise OSError("the sidecar is shutting down")
        end = min(self._length, (self._at // self._segment_bytes + 1) * self._segment_bytes)  # of the segment: each is judged at its end
        data = os.pread(self._descriptor, min(end - self._at, 1 << 20 if size < 0 else size), self._at)
        if not data and self._at < self._length:
            self.wrong = True
            raise OSError("the file is shorter than the shard")
        self._hasher.update(data)
        self._at += len(data)
        if self._at == end and data:
            index = (end - 1) // self._segment_bytes
            self.wrong = self.wrong or (self._hasher.intdigest() or 1) != self._sums[index]
            self._hasher = xxhash.xxh3_64()
            if self.wrong:
                raise OSError("the file has other bytes than were stored")
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence] + offset
        self._hasher = xxhash.xxh3_64()
        return self._at

    def tell(self) -> int:
        return self._at


def _status(error: Exception) -> int:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: Exception) -> str:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))[:64]


def _refusal(error: Exception) -> StoreRefused:
    """What a write's failure means, in words without a URL: the SDK's own name endpoints and keys."""
    status, code = _status(error), _code(error)
    said = f"the store answered {status} {code}".strip() if status else type(error).__name__
    if status == 507 or code in ("QuotaExceeded", "EntityTooLarge", "ServiceQuotaExceededException", "XMinioStorageFull"):
        return StoreRefused("full", said)
    if status in (401, 403, 404):
        return StoreRefused("refused", said)
    return StoreRefused("unavailable", said)
