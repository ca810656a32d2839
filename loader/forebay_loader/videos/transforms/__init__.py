"""Named transforms of what ``fb.video`` gives: functions of arrays, imported when they are first asked for.

| transform | from | to |
|---|---|---|
| ``frame_difference`` | frames | what changed from each to the next |
| ``optical_flow`` | frames | how far each pixel moved to the next (extra ``flow``: OpenCV) |
| ``mel_spectrogram`` | audio | energy by time and pitch (torch) |

``dataset.map(lambda sample: {**sample, "flow": optical_flow(sample["frames"])})``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_loader.videos.transforms.difference import frame_difference
    from forebay_loader.videos.transforms.flow import optical_flow
    from forebay_loader.videos.transforms.mel import mel_spectrogram

__all__ = ["frame_difference", "mel_spectrogram", "optical_flow"]


_LAZY = {"frame_difference": "difference", "mel_spectrogram": "mel", "optical_flow": "flow"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
