"""Where an iteration of a data set stands, so that another process can go on there: torchdata's ``StatefulDataLoader`` asks for it.

The epoch and the number of yielded samples say what comes next. The order is a function of seed and epoch, so the resumed iteration goes
through its epoch again and leaves out the samples that were yielded. A state is refused if its order is drawn by the clock or its data are
others: samples would be lost and others read twice, without an error.
"""

from __future__ import annotations

import os
import random
import re
import threading
from hashlib import blake2b
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from webdataset import filters

from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.identity.world import World, here_worker

__all__ = ["Resumed", "SampleShuffle", "StreamPosition", "made_of", "undetermined"]

FORMAT = 1
_DRAWN = ("_shuffle", "_rsample")  # webdataset's stages that draw by time and pid
_NAMES = 64
_URL = re.compile(r"://[^/\s'\"?#]*([^\s'\"?#]*)")
_END = object()
_REFUSED = "the state that was loaded cannot be resumed"
_ADVICE = "set_epoch(n) without a state begins epoch n from its start"


class StreamPosition:
    """One iteration: its ``epoch``, and how many samples were yielded, those before the resume included.

    ``drawing`` are webdataset's stages that count their passes by themselves, ``most`` is what the iteration yields at most.
    """

    def __init__(
        self, epoch: int, made_of: Mapping[str, Any], drawing: Sequence[Any], most: Optional[int], resumed: Optional[Resumed]
    ) -> None:
        self.epoch = epoch
        self.passed = 0
        self.over = resumed is not None and resumed.over
        self._most = most
        self._before = 0 if resumed is None else resumed.yielded
        self._made_of = dict(made_of)
        self._drawing = drawing
        self._drawn = [int(stage.epoch) for stage in drawing]

    def repeats(self) -> bool:
        """Whether samples are read again that were yielded before the resume."""
        return self.passed < self._before

    def state(self) -> dict[str, Any]:
        """Plain values, for any way of keeping them."""
        yielded = max(self.passed, self._before)  # while samples that were yielded before are read again, the position stays
        over = self.over or self.passed == self._most
        drawn = [int(stage.epoch) for stage in self._drawing] if over else self._drawn
        return {"format": FORMAT, "epoch": self.epoch, "yielded": yielded, "over": over, "made_of": self._made_of, "drawn": drawn}


class Resumed:
    """What a state says of the iteration to come, in the process that loaded it."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        if state.get("format") != FORMAT:
            raise ValueError(f"{_REFUSED}: it is of format {state.get('format')!r}, and this version knows {FORMAT}. {_ADVICE}")
        self.epoch = int(state["epoch"])
        self.yielded = int(state["yielded"]) + int(state.get("drop", 0))  # and what a loader has handed out since
        self.over = bool(state["over"])
        self._drawn: list[int] = list(state["drawn"])
        self._made_of = dict(state["made_of"])
        self._pid = os.getpid()

    def check(self, made_of: Mapping[str, Any], undetermined: str) -> None:
        """Raise ``ValueError`` where going on from here would lose samples or read some twice."""
        if self._pid != os.getpid():
            raise ValueError(
                f"{_REFUSED}: it was loaded in another process than reads; torchdata's StatefulDataLoader loads it in each worker"
            )
        if not self.yielded:
            return
        if undetermined:
            raise ValueError(f"{_REFUSED}: {undetermined}. {_ADVICE}")
        other = [f"{name} was {was!r} and is {made_of.get(name)!r}" for name, was in self._made_of.items() if made_of.get(name) != was]
        if other:
            raise ValueError(f"{_REFUSED}: it is of another data set or split: {'; '.join(other)}. {_ADVICE}")

    def redraw(self, drawing: Sequence[Any]) -> None:
        """Let stages that count their passes by themselves count on from there."""
        for stage, passes in zip(drawing, self._drawn):  # noqa: B905  # strict= is not of 3.9
            stage.epoch = passes

    def rest(self, samples: Iterator[Any]) -> Iterator[Any]:
        """What of the epoch's ``samples`` had not been yielded. Raises ``ValueError`` where there are fewer than that."""
        if self.over:
            return
        for at in range(self.yielded):
            if next(samples, _END) is _END:
                raise ValueError(f"{_REFUSED}: it had yielded {self.yielded} of epoch {self.epoch}, which has {at} now. {_ADVICE}")
        yield from samples


def made_of(urls: Optional[Sequence[str]], order: Any, world: World, stages: Iterable[Any]) -> dict[str, Any]:
    """What must be the same for a state to mean the same."""
    worker = here_worker()
    return {
        "shards": None if urls is None else len(urls),
        "their names": None if urls is None else _names(urls),
        "order": repr(order),
        "rank": f"{world.rank} of {world.size}",
        "worker": f"{worker.id} of {worker.workers}",
        "stages": [_sized(stage) for stage in stages],
    }


def undetermined(listed: bool, stages: Iterable[Any]) -> str:
    """Why nobody can tell in which order samples come; "" where seed and epoch tell."""
    if not listed:
        return "its shards come from a source of their own, whose order is not known here"
    for stage in stages:
        if _name(stage) in _DRAWN and getattr(stage, "kw", {}).get("seed") is None:
            return f"its stage {_name(stage)[1:]} draws by the clock; .shuffle(n) of fb.WebDataset, and seed=, draw the same again"
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
    return " ".join([_name(stage), *(str(value) for value in given if isinstance(value, (int, float)))])


def _name(stage: Any) -> str:
    made = getattr(stage, "f", stage)  # webdataset's curried filters
    return str(getattr(made, "__name__", type(made).__name__))


class SampleShuffle(EpochStage):
    """``.shuffle(n)``: webdataset's own buffer, drawn from by seed, epoch, rank and worker instead of by the clock."""

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
        worker = here_worker()
        key = f"samples/{self._seed}/{epoch}/{turn}/{self._world.resolved().rank}/{worker.id}"
        shuffled: Iterator[Any] = filters._shuffle(data, rng=random.Random(key), **self.buffer)  # noqa: S311  # an order, no secret
        return shuffled

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_world": self._world.resolved(), "_began": {}}
