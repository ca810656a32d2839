"""The position of an iteration of a data set, so that another process can continue it. torchdata's ``StatefulDataLoader`` asks for it.

The order depends only on seed and epoch. So an exact state needs three things: the shards that were begun, the number of samples read, and
the samples that wait in buffers. The resumed iteration starts at that place in the epoch. With ``resume="replay"`` it reads the epoch again
and drops the samples that were already yielded.

A state is refused if the order depends on the clock, or if the data set is another one. Otherwise some samples would be lost and others
read twice, without an error.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from hashlib import blake2b
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.base.errors import NotResumable
from forebay_loader.base.notices import log
from forebay_loader.identity.world import World, here_worker
from forebay_loader.resume.cursor import Cursor, Taken, TakenSamples, cursor_here
from forebay_loader.resume.known_stages import kind_of, name_of, untold
from forebay_loader.resume.pass_state import PassState, Ranges
from forebay_loader.resume.sample_buffer import SampleBuffer
from forebay_loader.resume.sample_draws import draw_for, drawn_for
from forebay_loader.resume.state_parts import FORMAT, check_format

__all__ = ["Resumed", "SampleShuffle", "StreamPosition", "made_of", "undetermined", "untold_class", "untold_of"]

_UNLISTED = "its shards come from a source of their own, whose order is not known here"
_NAMES = 64
_URL = re.compile(r"://[^/\s'\"?#]*([^\s'\"?#]*)")
_END = object()
_REFUSED = "the state that was loaded cannot be resumed"
_ADVICE = "set_epoch(n) without a state begins epoch n from its start"
_OF_ONE_WORLD = ("rank", "worker")
_OF_ANY_WORLD = ("shards", "their names", "order", "files")
_MERGE = "fb.merge_states makes of the states of all ranks one that any number of ranks and workers goes on from; "
_NOT_EXACT = "this pipeline has no exact state"
_REPLAY = "fb.WebDataset(…, resume='replay') resumes it by running the epoch again up to there; or move that stage to the loader, behind it"


class StreamPosition:
    """One iteration: its ``epoch``, and how many samples it has yielded, including those before the resume.

    ``drawing`` are webdataset's stages that count their passes themselves. ``most`` is the largest number of samples the iteration yields.
    ``untold`` is the reason why the state cannot be exact: "" if it can, None if the user asked for a replay.
    """

    def __init__(
        self,
        epoch: int,
        made_of: Mapping[str, Any],
        drawing: Sequence[Any],
        most: Optional[int],
        resumed: Optional[Resumed],
        untold: Optional[str],
    ) -> None:
        self.epoch = epoch
        self.passed = resumed.yielded if resumed is not None and resumed.exact else 0
        self.over = resumed is not None and resumed.over
        self._most = most
        self._before = 0 if resumed is None else resumed.yielded + resumed.drop
        self._made_of = dict(made_of)
        self._drawing = drawing
        self._drawn = [int(stage.epoch) for stage in drawing]
        self._untold = untold  # None: the user asked for a replay
        self._resumed = resumed
        self._cursor: Optional[Cursor] = None  # of the latest pass
        self._taken: Optional[TakenSamples] = None

    def begin(self, cursor: Cursor, *, asked: bool) -> None:
        """Start a pass of this iteration. ``asked``: a loader wants to know which samples it yields."""
        self._cursor = cursor
        self._taken = TakenSamples(cursor, self._taken) if asked else None
        if self._untold is not None:
            self._drawn = [int(stage.epoch) for stage in self._drawing]

    def noting(self, samples: Iterator[Any], key: str) -> Iterator[Any]:
        """Yield ``samples`` and count them, if a state needs the count. Stages that draw while they make a sample draw by ``key``."""
        draw_for(key)
        try:
            for self.passed, sample in enumerate(samples, self.passed + 1):  # noqa: B020
                if self._taken is not None:
                    self._taken.note()
                yield sample
                draw_for(key)  # this thread may have read from another data set in between
        finally:
            drawn_for(key)

    @property
    def turn(self) -> int:
        """The number of the latest pass."""
        return 0 if self._cursor is None else self._cursor.turn

    def look(self) -> Taken:
        """The samples yielded since the last call, in the latest pass. The first call returns nothing and starts the recording."""
        if self._taken is None:
            self._taken = None if self._cursor is None else TakenSamples(self._cursor)
            return Taken.nothing()
        return self._taken.look()

    def repeats(self) -> bool:
        """Whether the iteration still reads samples again that it had yielded before the resume."""
        return self.passed < self._before

    def state(self) -> dict[str, Any]:
        """The position as plain values, which any format can store. Raises ``NotResumable``."""
        if self._cursor is None and self._resumed is not None and self._before:
            return self._resumed.told
        yielded = max(self.passed, self._before)  # a replay does not move the position back
        over = self.over or self.passed == self._most
        drawn = [int(stage.epoch) for stage in self._drawing] if over else self._drawn
        found = {"format": FORMAT, "epoch": self.epoch, "yielded": yielded, "over": over, "made_of": self._made_of, "drawn": drawn}
        if self._untold is None:
            return {**found, "resume": "replay"}
        strange = "" if self._cursor is None else self._cursor.shards.strange
        why = self._untold or (f"{strange}. {_REPLAY}" if strange else "")
        if why:
            raise NotResumable(f"{_NOT_EXACT}: {why}")
        on = self._resumed
        where = self._cursor or (Cursor() if on is None else Cursor(done=on.done, etags=on.done_etags))
        return {**found, "resume": "exact", **where.state()}


class Resumed:
    """A loaded state, in the process that loaded it: where the next iteration starts."""

    def __init__(self, state: Mapping[str, Any], *, replays: bool) -> None:
        check_format(state, "the state that was loaded")
        self.merged = state.get("kind") == "merged"
        if "kind" in state and not self.merged:
            raise ValueError(f"{_REFUSED}: it is that of a {state['kind']}, which fb.WebLoader's load_state_dict takes. {_ADVICE}")
        self.epoch: int = state["epoch"]
        self.yielded = 0 if self.merged else int(state["yielded"])
        self.drop = int(state.get("drop", 0))
        self.over: bool = state["over"]
        self._drawn: Sequence[int] = state.get("drawn", ())
        self._pid = os.getpid()
        self.told = dict(state)
        self.exact = self.merged or (state["resume"] == "exact" and not replays)
        self.turn = int(state["turn"]) if self.exact else 0
        done = state.get("done", {}).items()  # an empty list: the whole shard was read
        self.done: dict[int, Ranges] = {int(shard): [] if told == "all" else [(one[0], one[1]) for one in told] for shard, told in done}
        etags = state.get("etags" if self.merged else "done_etags", {}).items()
        self.done_etags: dict[int, str] = {int(shard): etag for shard, etag in etags}
        self.place = PassState.of(state) if self.exact and not self.merged and self.yielded else None

    def check(self, made_of: Mapping[str, Any], undetermined: str) -> None:
        """Raise ``ValueError`` if continuing from this state would lose samples or read some twice."""
        if self._pid != os.getpid() and not self.merged:
            raise ValueError(
                f"{_REFUSED}: it was loaded in another process than reads; torchdata's StatefulDataLoader loads it in each worker"
            )
        if not self.yielded and not self.merged:
            return
        if undetermined:
            raise ValueError(f"{_REFUSED}: {undetermined}. {_ADVICE}")
        told = {name: was for name, was in self.told["made_of"].items() if not self.merged or name in _OF_ANY_WORLD}
        if str(self.told["made_of"].get("passes", "1 of")).partition(" ")[0] != "1":
            told["passes"] = self.told["made_of"]["passes"]  # later passes follow the rest of this one
        other = [f"{name} was {was!r} and is {made_of.get(name)!r}" for name, was in told.items() if made_of.get(name) != was]
        if other:
            way = _MERGE if [name for name in _OF_ONE_WORLD if made_of.get(name) != told.get(name)] and not self.merged else ""
            raise ValueError(f"{_REFUSED}: it is of another data set or split: {'; '.join(other)}. {way}{_ADVICE}")

    @property
    def begins(self) -> Optional[int]:
        """The epoch of the next iteration; None if this state does not decide it.

        A merged state is loaded once, and the process hands it to every worker that it starts later, also in later epochs.
        """
        return self.epoch if self._pid == os.getpid() else None

    def redraw(self, drawing: Sequence[Any]) -> None:
        """Set the counters of stages that count their passes themselves to their values in the state."""
        for stage, passes in zip(drawing, self._drawn):  # noqa: B905  # strict= is not of 3.9
            stage.epoch = passes

    def rest(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield those of the epoch's ``samples`` that had not been yielded. Raises ``ValueError`` if the epoch is shorter than the state
        says.
        """
        if self.over:
            return
        gone, began = self.drop if self.exact else self.yielded + self.drop, time.monotonic()
        for at in range(gone):
            if next(samples, _END) is _END:
                were = self.yielded + self.drop
                now = at + (self.yielded if self.exact else 0)
                raise ValueError(f"{_REFUSED}: it had yielded {were} of epoch {self.epoch}, which has {now} now. {_ADVICE}")
        if not self.exact and gone:
            seconds = time.monotonic() - began
            log.warning("forebay: resumed by replay: %d outputs of epoch %d were made again, in %.1f s", gone, self.epoch, seconds)
        yield from samples


def made_of(
    urls: Optional[Sequence[str]], order: Any, world: World, stages: Iterable[Any], passes: tuple[int, int] = (1, -1)
) -> dict[str, Any]:
    """The properties of a data set that must be unchanged for a state to fit it.

    ``passes`` is how many passes an iteration makes, and the largest number of samples it yields.
    """
    worker = here_worker()
    return {
        "shards": None if urls is None else len(urls),
        "their names": None if urls is None else _names(urls),
        "order": repr(order),
        "rank": f"{world.rank} of {world.size}",
        "worker": f"{worker.id} of {worker.workers}",
        "stages": [_sized(stage) for stage in stages],
        "passes": f"{passes[0]} of {passes[1]} each",
        "files": "some" if any(getattr(stage, "selects", False) for stage in stages) else "all",
    }


def undetermined(listed: bool, stages: Sequence[Any]) -> str:
    """Why the order of samples is not known in advance; "" if seed and epoch decide it."""
    if not listed:
        return _UNLISTED
    for stage in stages:
        if kind_of(stage) == "shuffle" and getattr(stage, "kw", {}).get("rng") is not None:
            return f"its stage {name_of(stage)} draws from your own generator; .shuffle(n) of fb.WebDataset, and seed=, draw the same again"
    return ""


def untold_of(listed: bool, stages: Sequence[Any]) -> str:
    """Why a data set of ``stages`` has no exact state, and how to resume it nevertheless; "" if it has one."""
    reading = [at for at, stage in enumerate(stages) if getattr(stage, "reads_shards", False)]
    why = untold(stages[reading[-1] + 1 :]) if listed and reading else _UNLISTED
    return f"{why}. {_REPLAY}" if why else ""


def untold_class(kind: type, ours: type) -> str:
    """Why a data set of class ``kind``, derived from ``ours``, has no exact state; "" if it has one.

    If the subclass has an ``__iter__`` of its own, we cannot see what that does with the samples. It may declare ``state_kind = "one"``: it
    yields one sample for each one it takes.
    """
    for each in kind.__mro__[: kind.__mro__.index(ours)]:
        if "__iter__" in vars(each) and vars(each).get("state_kind") != "one":
            return (
                f"its class {each.__qualname__} has an __iter__ of its own, which may hold samples back or leave some out unseen. If it "
                "gives one for each, before it asks for the next, say so in the class: state_kind = 'one'; else make a stage of it, "
                ".compose(generator)"
            )
    return ""


def _names(urls: Sequence[str]) -> str:
    """A digest of at most 64 of the names, in their order: a list may have half a million.

    Only the last folder and the file name count, since a store may move.
    """
    every = max(1, -(-len(urls) // _NAMES))
    tails = ["/".join(_place(url).split("/")[-2:]) for url in urls[::every]]
    return blake2b("\n".join(tails).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _place(url: str) -> str:
    """The path of ``url``, or of the URL in a command. Host, signature and token are left out: they may change from run to run."""
    found = _URL.search(url)
    return found.group(1) if found else url


def _sized(stage: Any) -> str:
    """A stage's name and its numeric arguments: a buffer of another size gives another order."""
    if isinstance(getattr(stage, "made_of", None), str):
        return str(stage.made_of)  # a stage that makes batches within a budget describes itself
    if isinstance(stage, SampleShuffle):
        given = [*stage.buffer.values()]
    elif hasattr(stage, "f"):
        given = [*getattr(stage, "args", ()), *getattr(stage, "kw", {}).values()]
    else:
        given = [getattr(stage, name, None) for name in ("bufsize", "initial", "seed")]  # webdataset's detshuffle
    made = getattr(stage, "f", stage)  # webdataset's curried filters
    name = str(getattr(made, "__name__", type(made).__name__))
    drawn = ["by visit"] if kind_of(stage) == "part" else []  # it once drew by shard: old states do not fit
    return " ".join([name, *(str(value) for value in given if isinstance(value, (int, float))), *drawn])


class SampleShuffle(EpochStage):
    """``.shuffle(n)``: webdataset's buffer. It is shuffled by seed, epoch, rank and worker instead of by the clock."""

    state_kind = "shuffle"

    def __init__(self, seed: Any, world: World, buffer: Mapping[str, Any]) -> None:
        self._seed = seed
        self._world = world
        self.buffer = dict(buffer)
        self._began: dict[int, tuple[int, int]] = {}  # thread id -> epoch and turn of its next pass

    def __repr__(self) -> str:
        return f"<shuffle {self.buffer}, seed {self._seed}>"

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        self._began[threading.get_ident()] = epoch, turn

    def __call__(self, data: Iterator[Any]) -> Iterator[Any]:
        epoch, turn = self._began.pop(threading.get_ident(), (0, 0))
        key = f"samples/{self._seed}/{epoch}/{turn}/{self._world.resolved().rank}/{here_worker().id}"
        return SampleBuffer(random.Random(key), cursor_here() or Cursor(), **self.buffer).shuffled(data)  # noqa: S311  # an order, no secret

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_world": self._world.resolved(), "_began": {}}
