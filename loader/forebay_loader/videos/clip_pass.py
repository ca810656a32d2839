"""One pass over clips: what ``fb.video`` was asked for, which epoch it is of, and how often it has come to a clip. Imports no numpy.

What a sampler draws is a function of the seed, the epoch, the clip's name and how often the pass came to that clip before. The name tells
its shard, and in ``fb.WebDataset`` how often the pass came to that: what a resumed pass counts anew here is 0 there. Where a clip is
met once in an epoch, the last is 0 in every worker and rank, so it does not matter who reads it. Where each rank and worker draws shards
for itself, two of them may come to one clip: there it matters who does, so that they do not draw the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Tuple, Union

from forebay_loader.videos.decode.frame_size import Size

__all__ = ["ClipArguments", "ClipPass", "ClipVisit"]

MOST_CLIPS = 1 << 20  # that a pass remembers: some 100 MB


class ClipVisit(NamedTuple):
    """One visit to a clip. ``phase`` says whose sampler of a table of epochs it is, ``epoch`` and ``again`` what is drawn."""

    phase: int
    epoch: int
    again: Tuple[int, int, int, int]  # the turn in the epoch, the place, how often the pass had to forget, the visits since


class ClipPass:
    """A pass of ``epoch``, its ``turn``-th; ``phase`` is the epoch of which the sampler is, where that is another one. ``counted``: nobody
    told the epoch. ``place``: whose pass it is, where others may come to the same clips."""

    def __init__(self, epoch: int, turn: int = 0, phase: Optional[int] = None, *, place: int = 0, counted: bool = False) -> None:
        self.epoch = epoch
        self.turn = turn
        self.place = place
        self.counted = counted
        self.phase = epoch if phase is None else phase
        self._forgot = 0
        self._visits: Dict[int, int] = {}  # by a digest of the name

    def visit(self, name: str) -> ClipVisit:
        """The next visit to the clip of that name.

        A pass that meets more clips than it remembers forgets all of them, and counts that: a clip that comes again is drawn anew still.
        """
        known_as = int.from_bytes(blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
        if known_as not in self._visits and len(self._visits) >= MOST_CLIPS:
            self._visits.clear()
            self._forgot += 1
        before = self._visits.get(known_as, 0)
        self._visits[known_as] = before + 1
        return ClipVisit(self.phase, self.epoch, (self.turn, self.place, self._forgot, before))


@dataclass(frozen=True)
class ClipArguments:
    """As ``fb.video`` says; ``sampling`` is a sampler, or None for all frames."""

    sampling: Any
    size: Size
    audio: Union[bool, int]
    members: FrozenSet[str]
    seed: int
    threads: int
    time_limit_s: Optional[float]
    metadata: Any  # a ClipMetadata, whose module needs numpy; or None
    source: str = ""  # the field that names the clip, in place of members
    frames: Any = None  # what ``fb.frames`` gives, of a room above; or None
    as_torchvision: bool = False  # sound as its read_video gives it: all of the clip's, whatever the frames; none where it cannot be read
