"""The vote of all ranks on one more step: a one-line all-reduce on a gloo group of its own, which never leaves a rank waiting for ever.

Each rank posts at most one vote that nobody has waited for: a few numbers under MIN, some of them negated as well, so that every rank
learns the least value and whether all were in the same epoch. Ranks that leave a loop at different steps thus find each other again: a rank
that hears of a later epoch ends its own, a rank that hears of an earlier one votes again. The store of the process group holds where each
rank is, for messages.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from typing import Any, Iterator, NamedTuple, Optional

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.loading.rank_agreement import Agreement
from forebay_loader.loading.vote_group import LAST_WORD_S, VoteGroup
from forebay_loader.meter.profile_ranges import profiled

__all__ = ["DONE", "GOES_ON", "StepVote", "VoteResult", "failed_rank", "failure_of", "group_is_up"]

DONE, GOES_ON = 0, 1  # the value of a vote: no more batches here, or at least one; below 0 it names a rank that failed
WATCH_S = 1.0  # how long one wait lasts, so that Ctrl-C is heard
NOTICE_S = 60.0  # a wait as long as this is said aloud: longer than most checkpoints, shorter than a person's patience
ASK_S = 5.0  # what the store may take to say who is missing
GRACE_S = 2.0  # ranks that are not missing come to a broken vote a little later
_NUMBERS = 9  # of a vote
_SERIALS: dict[str, Iterator[int]] = {}  # for each set of ranks, loaders that voted so far: the same number on all of these ranks


class VoteResult(NamedTuple):
    """What all ranks together said: ``number`` is the greatest, ``same`` whether all digests were the same and none was 0, ``alike``
    whether all gave the same ``common``.
    """

    least: int
    first_epoch: int
    last_epoch: int
    fresh: bool
    number: int
    same: bool
    alike: bool


def failure_of(rank: int) -> int:
    """The value of a vote that says: rank ``rank`` failed."""
    return -1 - rank


def failed_rank(least: int) -> Optional[int]:
    return -1 - least if least < 0 else None


def group_is_up() -> bool:
    """Whether this process has an initialised process group. Asks without importing torch."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


class StepVote:
    """The votes over one loader, between the ranks of ``group`` (None: all). Not for more than one thread."""

    def __init__(self, group: Any, timeout_s: float) -> None:
        distributed = sys.modules["torch.distributed"]
        self.ranks = sorted(distributed.get_process_group_ranks(distributed.group.WORLD if group is None else group))
        self.rank = distributed.get_rank(group)  # among those of the group
        self.epoch = -1  # the first is 0, as trainers count; counted by this process, so that a resumed one begins at 0 again
        self.voted = 0  # within the epoch
        self._timeout_s = timeout_s
        self._store = _store_of(distributed, self.ranks)
        self.words = Agreement(self._store, self.ranks, self.rank)
        self._line: Optional[VoteGroup] = None
        self._vote: list[int] = []
        self._on_its_way = False  # a vote whose result it has not read
        self._kept: Optional[VoteResult] = None  # of the vote on a step, read before it was asked for
        self._broken = ""

    def begin(self) -> int:
        """Begin the next epoch; a vote of the last epoch still on its way is waited for first. All ranks come here equally often."""
        if self._line is None:
            self._line = self._met()
        if self._on_its_way:
            self.verdict()
        self._kept = None
        self.epoch, self.voted = self.epoch + 1, -1
        return self.epoch

    def post(self, value: int, *, fresh: bool = False, number: int = 0, digest: int = 0, common: int = 0) -> None:
        """Vote, without waiting."""
        self._vote = self._numbers(value, fresh, number, digest, common)
        self.voted += 1
        self._say(f"step {self.voted} of epoch {self.epoch}")
        self._send()

    def verdict(self) -> VoteResult:
        """What the vote on its way came to. Raises ``StepsError``, which names who is missing, after ``timeout_s`` at the latest."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        if self._broken:
            raise StepsError(self._broken)
        try:
            with profiled("forebay.vote"):
                said = self._waited()
        except RuntimeError as error:
            self._broken = self._explained(error)
            raise StepsError(self._broken) from None
        least, first, last, fresh, number, digest, other, common, uncommon = said
        self._on_its_way = False
        return VoteResult(least, first, -last, bool(fresh), -number, digest == -other != 0, common == -uncommon)

    def settled(self) -> VoteResult:
        """The verdict, with all ranks in this epoch; or with one in a later epoch."""
        while True:
            said = self.verdict()
            if said.last_epoch > self.epoch or said.first_epoch == self.epoch:
                return said
            self._send()  # the same vote once more: some rank was still in an earlier epoch

    def aside(self, value: int, *, number: int = 0, digest: int = 0, common: int = 0) -> Optional[VoteResult]:
        """A vote between two on steps, waited for; every rank that is in this epoch casts it at the same step. None where one has left it.

        The vote on a step that is on its way is waited for first; what it came to stays for ``verdict``.
        """
        if self._on_its_way or self._kept is not None:
            self._kept = self.settled()
        kept, vote = self._kept, self._vote
        self._kept, self._vote = None, self._numbers(value, False, number, digest, common)
        self._say(f"a decision behind step {self.voted} of epoch {self.epoch}")
        self._send()
        said = self.settled()
        self._kept, self._vote = kept, vote
        return None if said.last_epoch > self.epoch else said

    def leave(self, value: int) -> None:
        """Vote ``value``, without waiting, in the place of all votes aside that the others cast in this epoch: this rank has left it."""
        if self._line is None or not self._line.is_ours or self._on_its_way or self._broken:
            return
        self.tell("left the loop")
        self._vote = self._numbers(value, False, 0, 0, 0)
        self._send()

    def last_word(self, wait_s: float = LAST_WORD_S) -> None:
        """Give the vote on its way a moment to reach the others: this rank is about to fail, and perhaps to end."""
        with suppress(RuntimeError):
            if self._on_its_way and self._line is not None:
                self._line.wait(wait_s)

    def tell(self, text: str) -> None:
        """Leave word for the others' messages: this rank ``text``."""
        self._say(f"step {self.voted} of epoch {self.epoch}; it {text}")

    def close(self) -> None:
        """Give the group back; where a vote is still on its way, once it is done."""
        line, self._line, self._on_its_way = self._line, None, False
        if line is not None:
            line.close()

    def _met(self) -> VoteGroup:
        """Wait until every rank is here, then make the group: torch's own wait would not say which rank is missing."""
        self._store.set(f"here/{self.rank}", "here")
        began, told, pause = time.monotonic(), False, 0.001
        while missing := [rank for rank in range(len(self.ranks)) if not self._store.check([f"here/{rank}"])]:
            waited = time.monotonic() - began
            if waited > self._timeout_s:
                raise StepsError(f"{self._mine()} waited {waited:.0f} s for {self._names(missing)} to begin with this loader. {_ADVICE}")
            if waited > NOTICE_S and not told:
                told = True
                log.warning(
                    "%s has waited %.0f s for %s to begin with this loader. %s", self._mine(), waited, self._names(missing), _ADVICE
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return VoteGroup(self._store, self.rank, len(self.ranks), self._timeout_s, _NUMBERS)

    def _numbers(self, value: int, fresh: bool, number: int, digest: int, common: int) -> list[int]:
        return [value, self.epoch, -self.epoch, -int(fresh), -number, digest, -digest, common, -common]

    def _send(self) -> None:
        assert self._line is not None
        self._line.send(self._vote)
        self._on_its_way = True

    def _waited(self) -> list[int]:
        assert self._line is not None
        began, told = time.monotonic(), False
        while True:
            done = self._line.done
            try:
                return self._line.wait(WATCH_S)
            except RuntimeError:
                waited = time.monotonic() - began
                if done or waited > self._timeout_s + 2 * WATCH_S:
                    raise
            if waited > NOTICE_S and not told:
                told = True
                log.warning("%s has waited %.0f s for a vote. %s", self._mine(), waited, self._who(grace_s=0.0))

    def _explained(self, error: RuntimeError) -> str:
        reason = (str(error).partition("] ")[2] or str(error)).partition(". ")[0][:200]
        self.tell("saw a vote fail")
        return f"{self._mine()}: the vote on step {self.voted} of epoch {self.epoch} failed ({reason}). {self._who(GRACE_S)}"

    def _mine(self) -> str:
        return f"rank {self.ranks[self.rank]}"

    def _names(self, ranks: list[int]) -> str:
        named = ", ".join(str(self.ranks[rank]) for rank in ranks[:16]) + (", …" if len(ranks) > 16 else "")
        return f"rank{'s' if len(ranks) > 1 else ''} {named}"

    def _say(self, place: str) -> None:
        with suppress(Exception):  # the store ends with rank 0; the votes themselves go on without it
            self._store.set(f"at/{self.rank}", f"{self.epoch} {self.voted} {place}")

    def _who(self, grace_s: float) -> str:
        """Who has not voted, as far as the store knows; asked aside, because a dead store may not answer at all."""
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(self._asked(grace_s)), daemon=True)
        asking.start()
        asking.join(grace_s + ASK_S)
        return (
            found[0]
            if found
            else "Who is missing cannot be told: the store of the process group, in rank 0 or its launcher, does not answer"
        )

    def _asked(self, grace_s: float) -> str:
        until = time.monotonic() + grace_s
        try:
            places = self._places()
            while (_behind(places, self.rank) or _silent(places)) and time.monotonic() < until:
                time.sleep(0.1)
                places = self._places()
        except Exception:
            return "Who is missing cannot be told: the store of the process group is gone, so rank 0 or its launcher has ended"
        behind, silent = _behind(places, self.rank), _silent(places)
        if not behind and not silent:
            return "Every rank had voted, so a connection between two of them broke"
        last = "; ".join(f"{self._names([rank])}: {places[rank].text}" for rank in (behind or silent)[:4])
        what = "No vote" if behind else "No word since"
        return f"{what} from {self._names(behind or silent)} (last heard of {last}). {_ADVICE}"

    def _places(self) -> list[_Place]:
        """Where each rank was last heard of."""
        found = []
        for rank in range(len(self.ranks)):
            text = self._store.get(f"at/{rank}").decode() if self._store.check([f"at/{rank}"]) else "-1 0 the beginning"
            epoch, voted, place = text.split(" ", 2)
            found.append(_Place(int(epoch), int(voted), place))
        return found


class _Place(NamedTuple):
    """The last vote of a rank, and in words."""

    epoch: int
    voted: int
    text: str


def _behind(places: list[_Place], mine: int) -> list[int]:
    """Ranks that have not come as far as rank ``mine``; one that failed counts, however far it came."""
    return [rank for rank, place in enumerate(places) if rank != mine and (place[:2] < places[mine][:2] or "; it failed" in place.text)]


def _silent(places: list[_Place]) -> list[int]:
    """Ranks that have not seen the vote fail, where others have: they ended, or are still at their step."""
    return [rank for rank, place in enumerate(places) if "; it saw" not in place.text]


_ADVICE = "Either it has ended, or only some ranks iterate this loader: then build it with equal_steps=False, which needs no vote"


def _store_of(distributed: Any, ranks: list[int]) -> Any:
    """A corner of the process group's store that the same loader has on every rank: the n-th that votes among these ranks."""
    store = distributed.distributed_c10d._get_default_store()
    name = hashlib.blake2b(",".join(map(str, ranks)).encode(), digest_size=8).hexdigest()
    serial = next(_SERIALS.setdefault(name, count()))
    return distributed.PrefixStore(f"forebay/{name}/{serial}", store)
