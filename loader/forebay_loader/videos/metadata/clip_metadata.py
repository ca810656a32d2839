"""What scans know of the clips of a training, and of a clip that none has seen what is found out when it is first used.

A clip is known by its name and its length, and what it says of itself now (each frame's time, keyframes, size, sound's rate) must be what
it said when it was looked at: a shard that was written anew has other clips under the same names, and samples do not tell its version.

What is found out on the way is added to the table, for other workers, the next training and the next scan.
"""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Callable, ContextManager, Optional, Union

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.motion import measured
from forebay_loader.videos.metadata.record import ClipRecord

__all__ = ["ClipMetadata"]


class ClipMetadata:
    """The table at ``path``, which need not be there. It travels to workers as its path.

    Raises ``CorruptClipTable`` where another file is there, or a damaged one: when it is first asked.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = os.fspath(path)
        self._table = ClipTable(path)
        self._found: dict[str, ClipRecord] = {}  # by this process: the table may be where nobody can write

    def __repr__(self) -> str:
        return f"<ClipMetadata {self.path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def completed(self, info: ClipInfo, name: str, clip_bytes: int, opened: Callable[[], ContextManager[Any]]) -> ClipInfo:
        """``info`` with the motion and the audio energy of the clip ``name`` (``clip_name``), which has ``clip_bytes``.

        Where nothing is known of such a clip, or its sound was left unread, it is measured, ``opened()`` being its source for that. Raises
        what that raises.
        """
        found = self._known(name, clip_bytes)
        same = found is not None and _facts(found, clip_bytes) == _facts(info, clip_bytes)
        if found is None or not same or (info.audio_rate_hz and found.audio_energy is None):
            with opened() as source:
                found = measured(source)
            COUNTS.add("video_scanned")
            self._note(ClipRecord(name, clip_bytes, "", found))
        return replace(info, motion=found.motion, audio_energy=found.audio_energy)

    def _known(self, name: str, clip_bytes: int) -> Optional[ClipInfo]:
        met = self._found.get(name)
        if met is not None and met.clip_bytes == clip_bytes:
            return met.info
        try:
            return self._table.find(name, clip_bytes)
        except FileNotFoundError:
            return None

    def _note(self, record: ClipRecord) -> None:
        self._found[record.name] = record
        try:
            self._table.add([record])
        except OSError as error:
            warn_node(f"what is found of clips cannot be kept: the next training finds it again ({error})")


def _facts(info: ClipInfo, clip_bytes: int) -> bytes:
    """The same of two looks at one clip, however it was read."""
    said = (clip_bytes, info.duration_s, info.width, info.height, info.rotation_deg, info.audio_rate_hz, info.keyframes)
    digest = blake2b(repr(said).encode(), digest_size=16)
    digest.update(info.times_s)
    return digest.digest()
