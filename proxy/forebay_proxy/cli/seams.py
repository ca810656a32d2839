"""What verbs take from outside the process; tests hand in their own, nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.shard import Shard

__all__ = ["PlainPiece", "PlainRead", "SaidReady", "Seams", "Surveyed"]


class SaidReady(Protocol):
    """What a sidecar knows of itself once it listens."""

    @property
    def url(self) -> str: ...
    @property
    def socket(self) -> Path | None: ...
    @property
    def cache_dir(self) -> Path: ...
    @property
    def instance(self) -> str: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def notices(self) -> tuple[str, ...]: ...


Serve = Callable[[Settings, Callable[[SaidReady], None]], int]


def _serve(settings: Settings, announce: Callable[[SaidReady], None]) -> int:
    # Imported here: the service brings aiohttp and boto3, half a second that no other verb should wait for.
    from forebay_proxy.app.service import run_service  # noqa: PLC0415

    return run_service(settings, announce=announce)


class Surveyed(Protocol):
    """What origins said of the lengths of shards."""

    @property
    def lengths(self) -> Mapping[str, int]: ...
    @property
    def asked(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def mean_bytes(self) -> int: ...


Survey = Callable[[Sequence[Shard], Settings, int], Surveyed]


def _survey(shards: Sequence[Shard], settings: Settings, count: int) -> Surveyed:
    from forebay_proxy.origins.survey import survey  # noqa: PLC0415 -- as above

    return survey(shards, settings, count)


class PlainPiece(Protocol):
    """What was read of a shard: its first ``size`` bytes, all of them if it is ``whole``."""

    @property
    def shard(self) -> Shard: ...
    @property
    def size(self) -> int: ...
    @property
    def whole(self) -> bool: ...
    @property
    def digest(self) -> str: ...


class PlainRead(Protocol):
    """What a plain reader got, and in how many seconds."""

    @property
    def pieces(self) -> Sequence[PlainPiece]: ...
    @property
    def seconds(self) -> float: ...


ReadDirectly = Callable[[Sequence[Shard], Settings, int, float, Mapping[str, str]], PlainRead]


def _read_directly(shards: Sequence[Shard], settings: Settings, most_bytes: int, most_s: float, environ: Mapping[str, str]) -> PlainRead:
    from forebay_proxy.cli.shards.plain_read import read_directly  # noqa: PLC0415 -- as above

    return read_directly(shards, settings, most_bytes, most_s, environ)


@dataclass(frozen=True)
class Seams:
    """``program`` is what ``run`` starts as a sidecar; -P keeps a ``queue.py`` in the training directory from shadowing the library's."""

    program: tuple[str, ...] = (sys.executable, "-P", "-m", "forebay_proxy", "serve")
    serve: Serve = _serve
    survey: Survey = _survey
    read_directly: ReadDirectly = _read_directly
