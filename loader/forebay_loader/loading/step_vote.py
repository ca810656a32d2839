"""The vote of all ranks on one more step: one small all-reduce on a gloo group of its own, which never leaves a rank waiting for ever.

A vote is a few numbers under MIN, some of them negated as well, so that every rank learns the least value and whether all were in the same
epoch. Ranks that leave a loop at different steps thus find each other again: a rank that hears of a later epoch ends its own, a rank that
hears of an earlier one votes again. The store of the process group holds where each rank is, for messages.
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

DONE, GOES_ON = 0, 1  # the value of a vote: no more batches here, or at least one; below 0 it names a rank that failed
WATCH_S = 1.0  # how long one wait lasts, so that Ctrl-C is heard
NOTICE_S = 60.0  # a wait as long as this is said aloud: longer than most checkpoints, shorter than a person's patience
LAST_WORD_S = 10.0  # a rank that failed waits so long for the others to hear it; later ones hear it from the broken connection
ASK_S = 5.0  # what the store may take to say who is missing
GRACE_S = 2.0  # ranks that are not missing come to a broken vote a little later
_NUMBERS = 9  # of a vote
_ADVICE = "Either it has ended, or only some ranks iterate this loader: then build it with equal_steps=False, which needs no vote"


class VoteResult(NamedTuple):
    """What all ranks together said: ``number`` is the greatest, ``same`` whether all digests were the same and none was 0, ``alike``
    whether all gave the same ``common``. ``failed`` is a rank that failed.
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
        self._step = 0  # within the epoch
        self._timeout_s = timeout_s
        self._store = store_of(self.ranks)
        self.words = Agreement(self._store, self.ranks, self.rank)
        self._line: Optional[_Line] = None
        self._broken = ""
        self._say_at_s = 0.0  # when others should hear again where this rank is

    @property
    def name(self) -> str:
        """This rank, for messages."""
        return f"rank {self.ranks[self.rank]}"

    def begin(self) -> int:
        """Begin the next epoch. All ranks come here equally often."""
        if self._line is None:
            self._line = self._met()
        elif not self._line.done and not self._broken:
            self._answer()  # to a last word that the others had not heard
        self.epoch, self._step = self.epoch + 1, 0
        return self.epoch

    def cast(
        self, value: int, step: int, *, fresh: bool = False, number: int = 0, digest: int = 0, common: int = 0
    ) -> Optional[VoteResult]:
        """Vote on ``step``, and wait for all; None where one has left this epoch and begun a later one.

        Raises ``StepsError``, which names who is missing, after ``timeout_s`` at the latest.
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
            # else some rank was still in an earlier epoch: the same vote once more

    def fail(self, error: BaseException, step: int) -> None:
        """This rank cannot take ``step``: tell the others, and give them a moment to hear it."""
        self._step = step
        self.tell(f"failed ({type(error).__name__}; its own log has the rest)")
        assert self._line is not None
        if not self._broken:
            self._send(-1 - self.ranks[self.rank], False, 0, 0, 0)
            with suppress(RuntimeError):
                self._line.wait(LAST_WORD_S)

    def tell(self, text: str) -> None:
        """Leave word for the others' messages: this rank ``text``."""
        self._say(f"; it {text}")

    def close(self) -> None:
        """Give the group back."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _met(self) -> _Line:
        """Wait until every rank is here, then make the group: torch's own wait would not say which rank is missing."""
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
        with suppress(Exception):  # the store ends with rank 0; the votes themselves go on without it
            self._store.set(f"at/{self.rank}", f"{self.epoch} {self._step} {text}")

    def _who(self, *, failed: bool) -> str:
        """Who has not voted, or has not seen the vote fail, as far as the store knows; asked aside, for a dead store may not answer."""
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
        """Where the ranks were last heard of that did not see the vote ``failed``, or have not come to this step."""
        found = {}
        for rank in range(len(self.ranks)):
            text = self._store.get(f"at/{rank}").decode() if self._store.check([f"at/{rank}"]) else "-1 0 "
            epoch, step, more = text.split(" ", 2)
            seen = "; it saw" in more if failed else (int(epoch), int(step)) >= (self.epoch, self._step)
            if rank != self.rank and not seen:
                found[rank] = f"step {step} of epoch {epoch}{more}" if int(epoch) >= 0 else "the beginning"
        return found


class _Line:
    """``size`` ranks that reduce numbers under MIN, one vote at a time. Made by all of them at once.

    A gloo thread keeps a reference to the tensor it reduces until a little after the vote is done. The thread that drops a tensor's last
    reference needs the interpreter; if Python is ending then, the thread is ended in the middle of C++, which aborts the process. So the
    tensor and the group outlive the process, unless they are given back before.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        with torch.inference_mode(mode=False):  # a tensor that may be written to in any mode later
            self._told = torch.zeros(_NUMBERS, dtype=torch.int64, device="cpu")
        self._gloo = distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", store), rank, size, timedelta(seconds=timeout_s))
        self._work: Any = None
        self._pid = os.getpid()
        _keep(self._gloo)
        _keep(self._told)

    def send(self, vote: list[int]) -> None:
        """Vote, without waiting. The vote before must be done."""
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
        """Whether no vote is on its way."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self, wait_s: float) -> list[int]:
        """What all voted. Raises ``RuntimeError`` where that failed, or takes longer than ``wait_s``."""
        self._work.wait(timedelta(seconds=wait_s))
        return list(self._told.tolist())

    def close(self) -> None:
        """Give the group back, with its threads, unless a vote is still on its way, or this process was forked from the one with them."""
        if self._pid != os.getpid() or not self.done:
            return
        gloo, self._gloo = self._gloo, None
        _let_go(gloo)
        del gloo  # its threads have ended now
        for held in (self._work, self._told):
            if held is not None:
                _let_go(held)


def _keep(held: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _let_go(held: Any) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(held))
