"""Where an iteration of a data set stands, so that another process can go on there: torchdata's ``StatefulDataLoader`` asks for it.

The order is a function of seed and epoch. So the shards that were begun, the samples read, and those that wait in buffers say what comes
next, and the resumed iteration enters its epoch there. By ``resume="replay"`` it goes through its epoch again and leaves out what was
yielded. A state is refused if its order is drawn by the clock or its data are others: samples would be lost and others read twice, without
an error.
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
    """One iteration: its ``epoch``, and how many samples were yielded, those before the resume included.

    ``drawing`` are webdataset's stages that count their passes by themselves, ``most`` is what the iteration yields at most.
    ``untold`` says why its state cannot be exact, "" where it is, and is None where a replay is asked for.
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
        self._untold = untold  # None: a replay is asked for
        self._resumed = resumed
        self._cursor: Optional[Cursor] = None  # of the turn that was begun last
        self._taken: Optional[TakenSamples] = None

    def begin(self, cursor: Cursor, *, asked: bool) -> None:
        """A pass of this iteration begins; ``asked``: somebody looks at what it takes."""
        self._cursor = cursor
        self._taken = TakenSamples(cursor, self._taken) if asked else None
        if self._untold is not None:
            self._drawn = [int(stage.epoch) for stage in self._drawing]

    def noting(self, samples: Iterator[Any], key: str) -> Iterator[Any]:
        """``samples``, counted where a state asks for it. What makes them draws by ``key``."""
        draw_for(key)
        try:
            for self.passed, sample in enumerate(samples, self.passed + 1):  # noqa: B020
                if self._taken is not None:
                    self._taken.note()
                yield sample
                draw_for(key)  # this thread may have pulled from another data set meanwhile
        finally:
            drawn_for(key)

    @property
    def turn(self) -> int:
        """The number of the pass that was begun last."""
        return 0 if self._cursor is None else self._cursor.turn

    def look(self) -> Taken:
        """What was given since the last look, in the pass that was begun last; nothing at the first look."""
        if self._taken is None:
            self._taken = None if self._cursor is None else TakenSamples(self._cursor)
            return Taken.nothing()
        return self._taken.look()

    def repeats(self) -> bool:
        """Whether samples are read again that were yielded before the resume."""
        return self.passed < self._before

    def state(self) -> dict[str, Any]:
        """Plain values, for any way of keeping them. Raises ``NotResumable``."""
        if self._cursor is None and self._resumed is not None and self._before:
            return self._resumed.told
        yielded = max(self.passed, self._before)  # while samples that were yielded before are read again, the position stays
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
    """What a state says of the iteration to come, in the process that loaded it."""

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
        done = state.get("done", {}).items()  # no ranges of a shard where all of it was read
        self.done: dict[int, Ranges] = {int(shard): [] if told == "all" else [(one[0], one[1]) for one in told] for shard, told in done}
        etags = state.get("etags" if self.merged else "done_etags", {}).items()
        self.done_etags: dict[int, str] = {int(shard): etag for shard, etag in etags}
        self.place = PassState.of(state) if self.exact and not self.merged and self.yielded else None

    def check(self, made_of: Mapping[str, Any], undetermined: str) -> None:
        """Raise ``ValueError`` where going on from here would lose samples or read some twice."""
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
            told["passes"] = self.told["made_of"]["passes"]  # those behind the one it is in come after what is left of that
        other = [f"{name} was {was!r} and is {made_of.get(name)!r}" for name, was in told.items() if made_of.get(name) != was]
        if other:
            way = _MERGE if [name for name in _OF_ONE_WORLD if made_of.get(name) != told.get(name)] and not self.merged else ""
            raise ValueError(f"{_REFUSED}: it is of another data set or split: {'; '.join(other)}. {way}{_ADVICE}")

    @property
    def begins(self) -> Optional[int]:
        """The epoch that the next iteration is of; None where it says nothing of that: a merged state is loaded once, and every worker
        that the process starts since has it, those of later epochs too."""
        return self.epoch if self._pid == os.getpid() else None

    def redraw(self, drawing: Sequence[Any]) -> None:
        """Let stages that count their passes by themselves count on from there."""
        for stage, passes in zip(drawing, self._drawn):  # noqa: B905  # strict= is not of 3.9
            stage.epoch = passes

    def rest(self, samples: Iterator[Any]) -> Iterator[Any]:
        """What of the epoch's ``samples`` had not been yielded. Raises ``ValueError`` where there are fewer than that."""
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
    """What must be the same for a state to mean the same. ``passes``: how many an iteration makes, and what it yields at most."""
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
    """Why nobody can tell in which order samples come; "" where seed and epoch tell."""
    if not listed:
        return _UNLISTED
    for stage in stages:
        if kind_of(stage) == "shuffle" and getattr(stage, "kw", {}).get("rng") is not None:
            return f"its stage {name_of(stage)} draws from your own generator; .shuffle(n) of fb.WebDataset, and seed=, draw the same again"
    return ""


def untold_of(listed: bool, stages: Sequence[Any]) -> str:
    """Why the state of a data set of ``stages`` cannot be exact, and what resumes all the same; "" where it is."""
    reading = [at for at, stage in enumerate(stages) if getattr(stage, "reads_shards", False)]
    why = untold(stages[reading[-1] + 1 :]) if listed and reading else _UNLISTED
    return f"{why}. {_REPLAY}" if why else ""


def untold_class(kind: type, ours: type) -> str:
    """Why a data set of class ``kind``, made from ``ours``, cannot say where it stands: what its own ``__iter__`` does with the samples is
    not seen, nor how many it gave. "" where it says of itself that these are one for one."""
    for each in kind.__mro__[: kind.__mro__.index(ours)]:
        if "__iter__" in vars(each) and vars(each).get("state_kind") != "one":
            return (
                f"its class {each.__qualname__} has an __iter__ of its own, which may hold samples back or leave some out unseen. If it "
                "gives one for each, before it asks for the next, say so in the class: state_kind = 'one'; else make a stage of it, "
                ".compose(generator)"
            )
    return ""


def _names(urls: Sequence[str]) -> str:
    """A digest of the names in their order: of 64 of them, for a list of half a million; folder and file, for a store may move."""
    every = max(1, -(-len(urls) // _NAMES))
    tails = ["/".join(_place(url).split("/")[-2:]) for url in urls[::every]]
    return blake2b("\n".join(tails).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _place(url: str) -> str:
    """``url``, or the one in a command, from its path on: a signature, or a token beside it, is another one each time."""
    found = _URL.search(url)
    return found.group(1) if found else url


def _sized(stage: Any) -> str:
    """A stage's name, and the numbers it was given: another buffer draws another order."""
    if isinstance(getattr(stage, "made_of", None), str):
        return str(stage.made_of)  # of batches within a budget
    if isinstance(stage, SampleShuffle):
        given = [*stage.buffer.values()]
    elif hasattr(stage, "f"):
        given = [*getattr(stage, "args", ()), *getattr(stage, "kw", {}).values()]
    else:
        given = [getattr(stage, name, None) for name in ("bufsize", "initial", "seed")]  # webdataset's detshuffle
    made = getattr(stage, "f", stage)  # webdataset's curried filters
    name = str(getattr(made, "__name__", type(made).__name__))
    drawn = ["by visit"] if kind_of(stage) == "part" else []  # it drew by shard once: what such a state says was left out was not
    return " ".join([name, *(str(value) for value in given if isinstance(value, (int, float))), *drawn])


class SampleShuffle(EpochStage):
    """``.shuffle(n)``: webdataset's buffer, drawn from by seed, epoch, rank and worker instead of by the clock."""

    state_kind = "shuffle"

    def __init__(self, seed: Any, world: World, buffer: Mapping[str, Any]) -> None:
        self._seed = seed
        self._world = world
        self.buffer = dict(buffer)
        self._began: dict[int, tuple[int, int]] = {}  # by thread: the epoch and the turn that its next pass is of

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
