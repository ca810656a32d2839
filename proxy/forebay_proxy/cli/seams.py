"""What verbs take from outside the process; tests hand in their own, nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.shard import Shard

if TYPE_CHECKING:
    from forebay_proxy.app.status import ServiceInfo
    from forebay_proxy.origins.survey import Survey

__all__ = ["Seams"]

# Imported inside: the service brings aiohttp and boto3, half a second that no other verb should wait for.


def _serve(settings: Settings, announce: Callable[[ServiceInfo], None]) -> int:
    from forebay_proxy.app.service import run_service  # noqa: PLC0415

    return run_service(settings, announce=announce)


def _survey(shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
    from forebay_proxy.origins.survey import survey  # noqa: PLC0415

    return survey(shards, settings, count)


@dataclass(frozen=True)
class Seams:
    """``program`` is what ``run`` starts as a sidecar; -P keeps a ``queue.py`` in the training directory from shadowing the library's."""

    program: tuple[str, ...] = (sys.executable, "-P", "-m", "forebay_proxy", "serve")
    serve: Callable[[Settings, Callable[[ServiceInfo], None]], int] = _serve
    survey: Callable[[Sequence[Shard], Settings, int], Survey] = _survey
