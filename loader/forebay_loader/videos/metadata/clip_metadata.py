"""What scans know of the clips of a training, and of a clip that none has seen what is found out when it is first used.

For a set of a million clips a scan ahead is better: what is found out on the way is in the memory of each worker that met it, and in
``PATH.partial`` for the next training, or the scan that makes a table of it.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import replace
from typing import Any, Callable, ContextManager, NamedTuple, Optional, Union

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.measure import Measurable, measured
from forebay_loader.videos.metadata.record import ClipRecord, packed, unpacked
from forebay_loader.videos.metadata.scan_journal import ScanJournal

__all__ = ["ClipMetadata"]


class ClipEnergy(NamedTuple):
    """Of a clip of ``clip_bytes``: where it moves and sounds, as ``ClipInfo`` says."""

    clip_bytes: int
    motion: "Optional[array[float]]"
    audio: "Optional[array[float]]"


class ClipMetadata:
    """The table at ``path``, which need not be there, and its journal. It travels to workers as its path.

    Raises ``CorruptClipTable`` where another file is there, or a damaged one: when it is first asked.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = os.fspath(path)
        self._table, self._journal = ClipTable(path), ScanJournal(path)
        self._found: Optional[dict[str, ClipEnergy]] = None

    def __repr__(self) -> str:
        return f"<ClipMetadata {self.path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def completed(self, info: ClipInfo, name: str, clip_bytes: int, opened: Callable[[], ContextManager[Measurable]]) -> ClipInfo:
        """``info`` with the motion and the audio energy of the clip ``name`` (``clip_name``), which has ``clip_bytes``.

        Where nothing is known of a clip of that length it is measured, ``opened()`` being its source for that. Raises what that raises.
        """
        found = self._known(name, clip_bytes)
        if found is None:
            with opened() as source:
                scanned = measured(source)
            COUNTS.add("video_scanned")
            self._note(ClipRecord(name, clip_bytes, "", scanned))
            found = ClipEnergy(clip_bytes, scanned.motion, scanned.audio_energy)
        return replace(info, motion=found.motion, audio_energy=found.audio)

    def _known(self, name: str, clip_bytes: int) -> Optional[ClipEnergy]:
        try:
            info = self._table.find(name, clip_bytes)
        except FileNotFoundError:
            info = None
        if info is not None:
            return ClipEnergy(clip_bytes, info.motion, info.audio_energy)
        found = self._met().get(name)
        return found if found is not None and found.clip_bytes == clip_bytes else None

    def _met(self) -> dict[str, ClipEnergy]:
        """What the journal holds, read once, and what this process measured since."""
        if self._found is None:
            records = map(unpacked, self._journal.records())
            self._found = {one.name: ClipEnergy(one.clip_bytes, one.info.motion, one.info.audio_energy) for one in records}
        return self._found

    def _note(self, record: ClipRecord) -> None:
        self._met()[record.name] = ClipEnergy(record.clip_bytes, record.info.motion, record.info.audio_energy)
        try:
            self._journal.append(packed(record))
        except OSError as error:
            warn_node(f"what is found of clips cannot be kept in {self._journal.path} ({error.strerror}): the next training finds it again")
