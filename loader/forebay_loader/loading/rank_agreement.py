"""Checks that ranks agree on settings: each writes its own into the process group's store, and compares when all have written.

No rank waits for another, except shortly before its first batch. So a loop that only one rank runs is not blocked. A loader is identified
by the place in the program where it was built, and by its number in the order of first iterations there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from hashlib import blake2b
from itertools import count
from typing import Any, Iterator, NamedTuple, Optional

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import notice_once

__all__ = ["Agreement", "Said", "agreement_of", "site", "store_of", "watched"]

FIRST_S = 1.0  # ranks reach their first batch at about the same time; later ones are compared while this one goes on
PAUSE_S = 0.5  # between two checks for missing ranks
_LABELS = {
    "batches": "batches an epoch (with_epoch, batches_per_epoch)",
    "samples": "samples an epoch (with_epoch on the data set)",
    "shards": "shards listed",
    "seed": "seed",
    "epoch": "epoch=",
    "size": "ranks that share the data",
}
_SERIALS: dict[str, Iterator[int]] = {}  # number of loaders that started, for each set of ranks and place in the program


class Said(NamedTuple):
    """The settings of one rank's loader: the ``part`` that it reads of ``size``, the numbers asked for, and the order that ranks split."""

    part: int
    size: int
    batches: Optional[int] = None
    samples: Optional[int] = None
    shards: Optional[int] = None
    seed: Optional[int] = None
    epoch: Optional[int] = None


class Agreement:
    """The exchange about one loader between ``ranks`` that share the data. ``rank`` is this one's position among them."""

    def __init__(self, store: Any, ranks: list[int], rank: int) -> None:
        self._store = store
        self._ranks = ranks
        self._rank = rank
        self._keys = [f"said/{place}" for place in range(len(ranks))]
        self.decided = False
        self._next_look_s = 0.0

    def say(self, said: Said) -> None:
        """Write this rank's settings. If the store does not answer, nothing is compared."""
        try:
            self._store.set(self._keys[self._rank], json.dumps(said))
        except Exception as error:
            self.decided = True
            told = f"the store of the process group does not answer ({type(error).__name__})"
            notice_once("agreement", f"whether all ranks read one epoch together is not looked at: {told}")

    def look(self) -> None:
        """Compare, if every rank has written and nothing was compared yet. Raises ``StepsError`` on all ranks if they differ."""
        if self.decided or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + PAUSE_S
        try:
            if not self._store.check(self._keys):
                return
            all_said = [Said(*json.loads(self._store.get(key))) for key in self._keys]
        except Exception:  # the store is gone, with rank 0 or its launcher
            self.decided = True
            return
        self.decided = True
        if differs := difference(all_said, self._ranks):
            raise StepsError(f"ranks do not read one epoch together: {differs}")

    def wait(self, wait_s: float) -> None:
        """Wait until every rank has written, for at most ``wait_s`` seconds."""
        until, pause = time.monotonic() + wait_s, 0.001
        while not self.decided:
            self._next_look_s = 0.0
            self.look()
            if self.decided or time.monotonic() > until:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def watched(batches: Iterator[Any], agreement: Agreement, wait_s: float = FIRST_S) -> Iterator[Any]:
    """Yield ``batches`` until a rank with other settings is found. Waits for the other ranks once, when the first batch is ready."""
    for at, batch in enumerate(batches):
        if at == 0 and wait_s:
            agreement.wait(wait_s)
        else:
            agreement.look()
        yield batch


def difference(all_said: list[Said], ranks: list[int]) -> str:
    """The setting in which ranks differ but must not, with both values; "" if they agree. ``ranks`` are their
    numbers, in the same order.
    """
    for name, label in _LABELS.items():
        values = [getattr(said, name) for said in all_said]
        for rank, value in zip(ranks, values):  # noqa: B905  # strict= is not of 3.9
            if value != values[0]:
                return f"{label}: {_shown(values[0])} on rank {ranks[0]}, {_shown(value)} on rank {rank}. Give all ranks the same"
    return _same_part(all_said, ranks)


def _same_part(all_said: list[Said], ranks: list[int]) -> str:
    """Whether a part of the data is read by no rank, for example because two ranks have the same number. Several ranks may share a part."""
    size, parts = all_said[0].size, [said.part for said in all_said]
    missing = [part for part in range(size) if part not in parts]
    if not missing or size > len(ranks):
        return ""
    often = Counter(parts).most_common(1)[0][0]
    both = [rank for rank, part in zip(ranks, parts) if part == often][:2]  # noqa: B905
    who = " and ".join(f"rank {rank}" for rank in both)
    return (
        f"{who} both read as rank {often} of {size}, and nobody reads as rank {missing[0]}: samples would come twice, and others never. "
        "Give each rank its own data_parallel=(rank, size), or none"
    )


def _shown(value: Optional[int]) -> str:
    return "none" if value is None else str(value)


def site() -> str:
    """Where in the program this was called from. Equal on every rank that took the same path."""
    frame, places = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        if not frame.f_globals.get("__name__", "").startswith("forebay_loader."):
            places.append(f"{os.path.basename(code.co_filename)}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return blake2b("\n".join(places).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def agreement_of(group: Any, place: str) -> Optional[Agreement]:
    """The exchange for a loader that was built at ``place`` and starts now; None if this process is not in ``group`` (None: all ranks)."""
    distributed = sys.modules["torch.distributed"]
    rank = distributed.get_rank(group)
    if rank < 0:
        return None
    ranks = sorted(distributed.get_process_group_ranks(distributed.group.WORLD if group is None else group))
    return Agreement(store_of(ranks, place), ranks, rank)


def store_of(ranks: list[int], place: str = "") -> Any:
    """A namespace in the process group's store, the same for the same loader on all ``ranks``: the n-th that is requested for ``place``."""
    distributed = sys.modules["torch.distributed"]
    name = f"{blake2b(','.join(map(str, ranks)).encode(), digest_size=8).hexdigest()}/{place}"
    serial = next(_SERIALS.setdefault(name, count()))
    return distributed.PrefixStore(f"forebay/{name}/{serial}", distributed.distributed_c10d._get_default_store())
