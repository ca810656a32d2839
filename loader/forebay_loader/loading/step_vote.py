"""The vote of all ranks on one more step: a small all-reduce on a gloo group of its own. No rank ever waits in it for ever.

A vote is a few numbers, reduced by MIN. Some are also sent negated, so that each rank learns the least and the greatest value, and whether
all ranks are in the same epoch. Ranks that leave a loop at different steps meet again in this way. A rank that hears of a later epoch ends
its own. A rank that hears of an earlier one votes again. The process group's store has the position of each rank, for messages.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Optional

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.loading.rank_agreement import Agreement, store_of
from forebay_loader.meter.profile_ranges import profiled

__all__ = ["DONE", "GOES_ON", "StepVote", "VoteResult", "group_is_up"]

DONE, GOES_ON = 0, 1  # a vote: this rank has no more batches, or at least one; a negative value names a rank that failed
WATCH_S = 1.0  # length of one wait, so that Ctrl-C is noticed
NOTICE_S = 60.0  # a wait this long is logged: longer than most checkpoints, shorter than a person's patience
LAST_WORD_S = 10.0  # a failed rank waits so long for the others to receive its vote; later ones notice the broken connection
ASK_S = 5.0  # time for the store to say who is missing
GRACE_S = 2.0  # the other ranks notice a broken vote a little later
_NUMBERS = 9  # in a vote
_ADVICE = "Either it has ended, or only some ranks iterate this loader: then build it with equal_steps=False, which needs no vote"


class VoteResult(NamedTuple):
    """The result of a vote: the ``least`` value, and the epochs of the ranks.

    ``number`` is the greatest number. ``same``: all digests were equal and none was 0. ``alike``: all ranks gave the same ``common``.
    ``failed`` is the number of a rank that failed.
    """

    least: int
    first_epoch: int
    last_epoch: int
    fresh: bool
    number: int
    same: bool
    alike: bool

    @property
    def failed(self) -> Optional[int]:
        return -1 - self.least if self.least < 0 else None


def group_is_up() -> bool:
    """Whether this process has an initialised process group. Does not import torch."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


class StepVote:
    """The votes about one loader between the ranks of ``group`` (None: all). Not thread-safe."""

    def __init__(self, group: Any, timeout_s: float) -> None:
        distributed = sys.modules["torch.distributed"]
        self.ranks = sorted(distributed.get_process_group_ranks(distributed.group.WORLD if group is None else group))
        self.rank = distributed.get_rank(group)  # within the group
        self.epoch = -1  # the first is 0, as trainers count; a resumed process starts at 0 again
        self._step = 0  # within the epoch
        self._timeout_s = timeout_s
        self._store = store_of(self.ranks)
        self.words = Agreement(self._store, self.ranks, self.rank)
        self._line: Optional[_Line] = None
        self._broken = ""
        self._say_at_s = 0.0  # when to write this rank's position to the store again

    @property
    def name(self) -> str:
        """This rank, for messages."""
        return f"rank {self.ranks[self.rank]}"

    def begin(self) -> int:
        """Start the next epoch, and return its number. All ranks call this equally often."""
        if self._line is None:
            self._line = self._met()
        elif not self._line.done and not self._broken:
            self._answer()  # finish a last vote that the others had not received
        self.epoch, self._step = self.epoch + 1, 0
        return self.epoch

    def cast(
        self, value: int, step: int, *, fresh: bool = False, number: int = 0, digest: int = 0, common: int = 0
    ) -> Optional[VoteResult]:
        """Vote on ``step`` and wait for all ranks. Returns None if a rank has left this epoch and begun a later one.

        Raises ``StepsError`` after at most ``timeout_s``; it names the missing ranks.
        """
        self._step = step
        if time.monotonic() >= self._say_at_s:
            self._say("")
        while True:
            self._send(value, fresh, number, digest, common)
            said = self._answer()
            if said.last_epoch > self.epoch:
                return None
            if said.first_epoch == self.epoch:
                return said
            # else a rank was still in an earlier epoch: vote again

    def fail(self, error: BaseException, step: int) -> None:
        """This rank cannot take ``step``: tell the other ranks, and give them a moment to receive it."""
        self._step = step
        self.tell(f"failed ({type(error).__name__}; its own log has the rest)")
        assert self._line is not None
        if not self._broken:
            self._send(-1 - self.ranks[self.rank], False, 0, 0, 0)
            with suppress(RuntimeError):
                self._line.wait(LAST_WORD_S)

    def tell(self, text: str) -> None:
        """Write ``text`` about this rank into the store, for messages of other ranks."""
        self._say(f"; it {text}")

    def close(self) -> None:
        """Release the group."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _met(self) -> _Line:
        """Wait until every rank has arrived, then make the group. torch's own wait would not say which rank is missing."""
        self._store.set(f"here/{self.rank}", "here")
        began, told, pause = time.monotonic(), False, 0.001
        while missing := [rank for rank in range(len(self.ranks)) if not self._store.check([f"here/{rank}"])]:
            waited = time.monotonic() - began
            text = f"{self.name} %s {waited:.0f} s for {self._names(missing)} to begin with this loader. {_ADVICE}"
            if waited > self._timeout_s:
                raise StepsError(text % "waited")
            if waited > NOTICE_S and not told:
                told = True
                log.warning(text, "has waited")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return _Line(self._store, self.rank, len(self.ranks), self._timeout_s)

    def _send(self, value: int, fresh: bool, number: int, digest: int, common: int) -> None:
        if self._broken:
            raise StepsError(self._broken)
        assert self._line is not None
        self._line.send([value, self.epoch, -self.epoch, -int(fresh), -number, digest, -digest, common, -common])

    def _answer(self) -> VoteResult:
        try:
            with profiled("forebay.vote"):
                least, first, last, fresh, number, digest, other, common, uncommon = self._waited()
        except RuntimeError as error:
            reason = (str(error).partition("] ")[2] or str(error)).partition(". ")[0][:200]
            self.tell("saw a vote fail")
            self._broken = f"{self.name}: the vote on step {self._step} of epoch {self.epoch} failed ({reason}). {self._who(failed=True)}"
            raise StepsError(self._broken) from None
        return VoteResult(least, first, -last, bool(fresh), -number, digest == -other != 0, common == -uncommon)

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
                self._say("")
            if waited > NOTICE_S and not told:
                told = True
                log.warning("%s has waited %.0f s for a vote. %s", self.name, waited, self._who(failed=False))

    def _names(self, ranks: list[int]) -> str:
        named = ", ".join(str(self.ranks[rank]) for rank in ranks[:16]) + (", …" if len(ranks) > 16 else "")
        return f"rank{'s' if len(ranks) > 1 else ''} {named}"

    def _say(self, text: str) -> None:
        self._say_at_s = time.monotonic() + WATCH_S
        with suppress(Exception):  # the store ends with rank 0; votes work without it
            self._store.set(f"at/{self.rank}", f"{self.epoch} {self._step} {text}")

    def _who(self, *, failed: bool) -> str:
        """Who has not voted, or has not seen the vote fail, as far as the store knows. Asked in a thread, since a dead store may not
        answer.
        """
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(self._asked(failed)), daemon=True)
        asking.start()
        asking.join(GRACE_S + ASK_S)
        told = "the store of the process group, in rank 0 or its launcher, does not answer"
        return found[0] if found else f"Who is missing cannot be told: {told}"

    def _asked(self, failed: bool) -> str:
        until = time.monotonic() + (GRACE_S if failed else 0.0)
        try:
            missing = self._missing(failed)
            while missing and time.monotonic() < until:
                time.sleep(0.1)
                missing = self._missing(failed)
        except Exception:
            return "Who is missing cannot be told: the store of the process group is gone, so rank 0 or its launcher has ended"
        if not missing:
            return "Every rank had voted, so a connection between two of them broke"
        last = "; ".join(f"{self._names([rank])}: {place}" for rank, place in list(missing.items())[:4])
        return f"No vote from {self._names(list(missing))} (last heard of {last}). {_ADVICE}"

    def _missing(self, failed: bool) -> dict[int, str]:
        """Where the ranks were last that have not seen the vote ``failed``, or have not reached this step."""
        found = {}
        for rank in range(len(self.ranks)):
            text = self._store.get(f"at/{rank}").decode() if self._store.check([f"at/{rank}"]) else "-1 0 "
            epoch, step, more = text.split(" ", 2)
            seen = "; it saw" in more if failed else (int(epoch), int(step)) >= (self.epoch, self._step)
            if rank != self.rank and not seen:
                found[rank] = f"step {step} of epoch {epoch}{more}" if int(epoch) >= 0 else "the beginning"
        return found


class _Line:
    """``size`` ranks that reduce numbers by MIN, one vote at a time. All ranks create it at once.

    A gloo thread keeps a reference to its tensor until shortly after the vote. To drop the last reference, it needs the interpreter. If
    Python is just ending, that aborts the process in the middle of C++. So the tensor and the group get an extra reference, and live until
    the process ends, unless ``close`` releases them before.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        with torch.inference_mode(mode=False):  # otherwise the tensor could only be written in inference mode
            self._told = torch.zeros(_NUMBERS, dtype=torch.int64, device="cpu")
        self._gloo = distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", store), rank, size, timedelta(seconds=timeout_s))
        self._work: Any = None
        self._pid = os.getpid()
        _keep(self._gloo)
        _keep(self._told)

    def send(self, vote: list[int]) -> None:
        """Vote, without waiting. The previous vote must be done."""
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        self._told.copy_(torch.tensor(vote, dtype=torch.int64, device="cpu"))
        options = distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MIN
        before, self._work = self._work, self._gloo.allreduce([self._told], options)
        _keep(self._work)
        if before is not None:
            _let_go(before)

    @property
    def done(self) -> bool:
        """Whether no vote is running."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self, wait_s: float) -> list[int]:
        """Return the result of the vote. Raises ``RuntimeError`` if the vote failed or takes longer than ``wait_s`` seconds."""
        self._work.wait(timedelta(seconds=wait_s))
        return list(self._told.tolist())

    def close(self) -> None:
        """Release the group and its threads. Does nothing while a vote is running, or in a forked child, which does
        not have the threads.
        """
        if self._pid != os.getpid() or not self.done:
            return
        gloo, self._gloo = self._gloo, None
        _let_go(gloo)
        del gloo  # this ends its threads
        for held in (self._work, self._told):
            if held is not None:
                _let_go(held)


def _keep(held: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _let_go(held: Any) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(held))
