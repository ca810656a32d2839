"""What verbs take from outside the process; tests hand in their own, nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forebay_proxy.settings import Settings
from forebay_proxy.shard import Shard

__all__ = ["Announced", "Seams", "Surveyed"]


class Announced(Protocol):
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


Serve = Callable[[Settings, Callable[[Announced], None]], int]


def _serve(settings: Settings, announce: Callable[[Announced], None]) -> int:
    # Imported here: the service brings aiohttp and boto3, half a second that no other verb should wait for.
    from forebay_proxy.service import run_service  # noqa: PLC0415

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
    from forebay_proxy.survey import survey  # noqa: PLC0415 -- as above

    return survey(shards, settings, count)


@dataclass(frozen=True)
class Seams:
    """``program`` is what ``run`` starts as a sidecar; -P keeps a ``queue.py`` in the training directory from shadowing the library's."""

    program: tuple[str, ...] = (sys.executable, "-P", "-m", "forebay_proxy.cli", "serve")
    serve: Serve = _serve
    survey: Survey = _survey
