"""Code that names Forebay expects a sidecar: one that was never started is an error at the first shard, not a slow epoch without a word.

That is for ``fb.WebDataset`` and ``fb.tarfile_to_samples``. Unchanged code that was taken over goes on as webdataset would have, with a
warning, and so does everything else once a sidecar has been seen: one that died is no mistake of the script's.
"""

from __future__ import annotations

import os
import time
from typing import Callable

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.base.timeouts import Limits
from forebay_loader.stream.shard_request import shown
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source

__all__ = ["Expected"]

_LOOK_S = 0.05


class Expected:
    """Whether a sidecar was ever named where this stage was built or is run. Pickled with the stage: a worker of a later epoch knows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen = _named()
        self._clock = clock

    def check(self, source: Source, limits: Limits) -> None:
        """Raises ``ProxyUnreachable`` when no sidecar was ever seen and ``source`` is remote; one that is just starting is waited for."""
        if self._seen or source.url.scheme == "file":
            return
        until_s = self._clock() + (0.0 if DEAD.known() else limits.open_s)
        while not _named():
            if self._clock() >= until_s:
                DEAD.found()  # the next shard does not wait again
                COUNTS.add("failed")
                raise ProxyUnreachable(
                    f"shard {shown(source)}: no sidecar runs for this user on this node; start one with `forebay serve` or `forebay run`, "
                    "use `with fb.sidecar():`, or set FOREBAY_URL to where one is"
                )
            time.sleep(_LOOK_S)
        self._seen = True


def _named() -> bool:
    """Whether a variable or run file names a sidecar, dead or alive: a set variable means one, and a dead one is left for the origin."""
    return bool(os.environ.get("FOREBAY_URL") or os.environ.get("FOREBAY_SOCKET")) or find_endpoint() is not None
