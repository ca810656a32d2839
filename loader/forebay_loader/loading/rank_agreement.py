"""What ranks must have in common: each leaves word in the store of the process group, and hears the others' words once all did.

No rank waits for another, but for a moment before its first batch: a loop that one rank has to itself goes on by itself. Which loaders
belong together is told by where in the program they were built: the n-th that was first iterated of those built there.
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

FIRST_S = 1.0  # ranks of one training come to their first batch at about the same time; late ranks are heard while this one goes on
PAUSE_S = 0.5  # between two looks for missing ranks
_LABELS = {
    "batches": "batches an epoch (with_epoch, batches_per_epoch)",
    "samples": "samples an epoch (with_epoch on the data set)",
    "shards": "shards listed",
    "seed": "seed",
    "epoch": "epoch=",
    "size": "ranks that share the data",
}
_SERIALS: dict[str, Iterator[int]] = {}  # loaders that began, for each set of ranks and place in the program


class Said(NamedTuple):
    """What one rank says of its loader: the ``part`` it reads of ``size``, the numbers asked for, the order that is shared out."""

    part: int
    size: int
    batches: Optional[int] = None
    samples: Optional[int] = None
    shards: Optional[int] = None
    seed: Optional[int] = None
    epoch: Optional[int] = None


class Agreement:
    """The words on one loader, of the ``ranks`` that share the data; ``rank`` is this one's place among them."""

    def __init__(self, store: Any, ranks: list[int], rank: int) -> None:
        self._store = store
        self._ranks = ranks
        self._rank = rank
        self._keys = [f"said/{place}" for place in range(len(ranks))]
        self.decided = False
        self._next_look_s = 0.0

    def say(self, said: Said) -> None:
        """Leave word. Without a store that answers there is nothing to compare."""
        try:
            self._store.set(self._keys[self._rank], json.dumps(said))
        except Exception as error:
            self.decided = True
            told = f"the store of the process group does not answer ({type(error).__name__})"
            notice_once("agreement", f"whether all ranks read one epoch together is not looked at: {told}")

    def look(self) -> None:
        """Compare, if every rank has spoken and nobody has compared yet. Raises ``StepsError`` on all ranks where they differ."""
        if self.decided or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + PAUSE_S
        try:
            if not self._store.check(self._keys):
                return
            all_said = [Said(*json.loads(self._store.get(key))) for key in self._keys]
        except Exception:  # the store has ended, with rank 0 or its launcher
            self.decided = True
            return
        self.decided = True
        if differs := difference(all_said, self._ranks):
            raise StepsError(f"ranks do not read one epoch together: {differs}")

    def wait(self, wait_s: float) -> None:
        """Look until every rank has spoken, for ``wait_s`` at most."""
        until, pause = time.monotonic() + wait_s, 0.001
        while not self.decided:
            self._next_look_s = 0.0
            self.look()
            if self.decided or time.monotonic() > until:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def watched(batches: Iterator[Any], agreement: Agreement, wait_s: float = FIRST_S) -> Iterator[Any]:
    """``batches``, for as long as no rank says anything else than this one. Waits for the others only when the first one is at hand."""
    for at, batch in enumerate(batches):
        if at == 0 and wait_s:
            agreement.wait(wait_s)
        else:
            agreement.look()
        yield batch


def difference(all_said: list[Said], ranks: list[int]) -> str:
    """In what ranks differ that may not, with both values; "" where they agree. ``ranks`` are their names, in the same order."""
    for name, label in _LABELS.items():
        values = [getattr(said, name) for said in all_said]
        for rank, value in zip(ranks, values):  # noqa: B905  # strict= is not of 3.9
            if value != values[0]:
                return f"{label}: {_shown(values[0])} on rank {ranks[0]}, {_shown(value)} on rank {rank}. Give all ranks the same"
    return _same_part(all_said, ranks)


def _same_part(all_said: list[Said], ranks: list[int]) -> str:
    """Whether a part of the data is nobody's, as where two ranks were told to be the same one. More ranks than parts may share one."""
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
    """Where in the program this was called from, the same on every rank that came the same way."""
    frame, places = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        if not frame.f_globals.get("__name__", "").startswith("forebay_loader."):
            places.append(f"{os.path.basename(code.co_filename)}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return blake2b("\n".join(places).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def agreement_of(group: Any, place: str) -> Optional[Agreement]:
    """For a loader that was built at ``place`` and begins now; None where this process is not of ``group`` (None: of all ranks)."""
    distributed = sys.modules["torch.distributed"]
    rank = distributed.get_rank(group)
    if rank < 0:
        return None
    ranks = sorted(distributed.get_process_group_ranks(distributed.group.WORLD if group is None else group))
    return Agreement(store_of(ranks, place), ranks, rank)


def store_of(ranks: list[int], place: str = "") -> Any:
    """A corner of the process group's store that the same loader has on every one of ``ranks``: the n-th that asks there at ``place``."""
    distributed = sys.modules["torch.distributed"]
    name = f"{blake2b(','.join(map(str, ranks)).encode(), digest_size=8).hexdigest()}/{place}"
    serial = next(_SERIALS.setdefault(name, count()))
    return distributed.PrefixStore(f"forebay/{name}/{serial}", distributed.distributed_c10d._get_default_store())
