"""What all sources of clips are, and room for their frames: none is made that this process cannot have."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, Sequence, Tuple, TypeVar

import numpy
from av.error import FFmpegError

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError

__all__ = ["VideoSource", "memory_bytes", "room_for"]

_DECODERS = ("av", "builtins", "numpy", "struct")  # whose errors decoders raise; a class of the program's own comes of its signal handler

Self = TypeVar("Self", bound="VideoSource")


class VideoSource:
    """One clip. It pickles, and nothing of it is open until ``open``: each worker opens its own. ``with`` closes it.

    Every method but ``close`` opens what is not open. All raise ``VideoError`` naming clip and shard, and what reading the bytes raises:
    ``fb.ShardReadError``, ``fb.ShardChanged``, ``fb.ProxyUnreachable``, ``OSError`` for a file.
    """

    name = ""  # what errors say; neither holds a token
    shard = ""
    size: Size = None  # of the frames that were asked for, as ``check_size`` gives it

    def open(self) -> ClipInfo:
        """What is known of the clip. Of a live one ``frames`` is 0: nobody knows how many will come."""
        raise NotImplementedError

    def frame(self, index: int) -> Any:
        """Frame ``index`` of the clip in presentation order: ``height x width x 3`` uint8 (RGB)."""
        return self.frames([index])[0]

    def frames(self, indices: Sequence[int]) -> Any:
        """Frames by number, in the order asked for, one asked for twice given twice: ``T x height x width x 3`` uint8 (RGB)."""
        raise NotImplementedError

    def audio(self, begin_s: float, end_s: float) -> Tuple[Any, int]:
        """Sound between two times on the clip's clock: (``channels x samples`` float32 from -1 to 1, samples a second).

        Shorter where the sound ends earlier; ``(0 x 0, 0)`` without any.
        """
        return numpy.zeros((0, 0), numpy.float32), 0

    @property
    def clip(self) -> Any:
        """Its ``ClipBytes``; None of what has none."""
        return None

    def clip_bytes(self) -> int:
        """How many bytes the clip's file has; 0 of what is no file."""
        return 0

    def version(self) -> str:
        """What tells the clip from another of its name, asked anew; "" where the name is not all that was given."""
        return ""

    def limit_together(self) -> None:
        """Count ``time_limit_s`` once from now on, for all calls, where a source takes it for each."""

    def close(self) -> None:
        """Let go of what is open. Safe to repeat; the source can be used again."""

    @contextmanager
    def named(self) -> Iterator[None]:
        """What knows no names raises without them; and whatever a decoder raises of a clip is the clip's error."""
        try:
            yield
        except VideoError as error:
            if error.clip == self.name and error.shard == self.shard:
                raise
            raise error.of(self.name, self.shard) from error
        except Exception as error:
            reading = isinstance(error, (OSError, MemoryError)) and not isinstance(error, FFmpegError)
            if reading or type(error).__module__.partition(".")[0] not in _DECODERS:
                raise
            raise CorruptVideo(f"its decoder fails: {type(error).__name__}: {error}", self.name, self.shard) from error

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# How much memory this process may have: the machine's, or less where a container or a batch system gives less.
def memory_bytes(root: Path = Path("/")) -> int:
    """The smallest of the machine's memory and the limits of the control groups that this process is in, of version 2 and 1.

    ``root`` is where ``proc`` and ``sys`` lie. What is in use by others is not taken off: who frees what is not known here.
    """
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _limit_files(root):
        with suppress(OSError, ValueError):  # not there, or "max"
            found = min(found, int(path.read_text()))
    return found


def _limit_files(root: Path) -> Iterator[Path]:
    """Of each group and those around it. A container sees its own group as the root, whatever path /proc tells."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if number == "0" and not kinds:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in kinds.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        yield from (top.joinpath(*parts[:depth], name) for depth in range(len(parts) + 1))


def room_for(count: int, shape: Tuple[int, int, int]) -> Any:
    """``count`` frames of ``shape``, uint8, not filled. Raises ``UnsupportedVideo`` where they are more than the memory that this process
    may have: a size is a clip's own word, and a count may be that of all its frames."""
    wanted, there = count * shape[0] * shape[1] * shape[2], memory_bytes()
    if wanted <= there:
        try:
            return numpy.empty((count, *shape), numpy.uint8)
        except MemoryError:
            pass
    raise UnsupportedVideo(
        f"{count} frames of {shape[1]} x {shape[0]} pixels take {wanted / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB here:"
        " ask for fewer, or for smaller ones (size=)"
    )
