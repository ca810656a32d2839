"""``fb.frames``: what is kept where. Imports neither PyAV nor numpy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional, Union

from forebay_loader.base.counters import SharedMemoCounts, share_memo_counts
from forebay_loader.base.kept_folders import note_folder
from forebay_loader.memos.frames.spool import held_bytes
from forebay_loader.memos.stage import bytes_of
from forebay_loader.memos.stores.choice import check_store, default_folder

__all__ = ["FramesAsked", "frames"]


def frames(
    *,
    folder: Union[str, "os.PathLike[str]", None] = None,
    size: Union[str, int] = "200GB",
    quality: Optional[int] = 90,
) -> "FramesAsked":
    """Keep all frames of each used clip on a local disk, so that later epochs read other frames of it instead of decoding them.

    For ``fb.video(…, frames=…)``. After a clip's first use a process in the background decodes all of it, at the lowest priority. Training
    never waits for it. From then on the chosen frames come from the disk; sound is still decoded from the clip. The frames of a clip in
    memory are found by a digest of its bytes, those of an object by its URL and ETag. Workers, ranks and jobs of a node share a folder.
    ``fb.counters()`` has ``frames_hits`` and what was kept, dropped or damaged.

    Args:
        folder: The folder of these frames alone, on a local disk. The default lies in ``$XDG_CACHE_HOME/forebay-memo``, or in ``~/.cache``.
        size: The most that it may take, in bytes or as ``"200GB"``. A tenth of it, at most 1 GiB, is for clips that wait.
        quality: That of JPEG, 1 to 100. None keeps frames as they are, bit for bit: some ten times as large.

    Returns:
        What ``fb.video(…, frames=…)`` takes.

    Raises:
        TypeError: An argument has the wrong kind.
        ValueError: An argument has a value that cannot be.
        ModuleNotFoundError: LMDB is not installed.

    Examples:
        >>> kept = fb.frames(folder="frames", size="200GB")
        >>> dataset = fb.WebDataset(urls).compose(fb.video("clip('random', 16, 2)", size=224, frames=kept))
    """
    check_store("lmdb")
    if quality is not None and (isinstance(quality, bool) or not isinstance(quality, int)):
        raise TypeError(f"quality takes a whole number from 1 to 100, or None; got {quality!r}")
    if quality is not None and not 1 <= quality <= 100:
        raise ValueError(f"quality takes a whole number from 1 to 100, or None; got {quality!r}")
    place = os.path.realpath(default_folder("frames") if folder is None else os.fspath(folder))
    return FramesAsked(place, bytes_of(size), quality, share_memo_counts())


@dataclass(frozen=True)
class FramesAsked:
    """A ``KeptFrames``. Pickles. ``folder``: its real path."""

    folder: str
    size_bytes: int
    quality: Optional[int]
    counts: SharedMemoCounts  # travels to workers

    def __post_init__(self) -> None:
        note_folder("frames", self.folder, self.size_bytes, held_bytes)

    def ready(self) -> None:
        """Open it in this process. Raises ``MemoError`` where the folder is of something else."""
        self._opened()

    def find(self, clip: Any, size: Any) -> Any:
        """What is kept of ``clip`` at ``size``: a ``ClipLookup``, or None where nobody can tell which clip it is."""
        return self._opened().find(clip, size, self.quality)

    def _opened(self) -> Any:
        from forebay_loader.memos.frames.opened_frames import opened_frames  # noqa: PLC0415  # PyAV, numpy and LMDB

        return opened_frames(self.folder, self.size_bytes)
