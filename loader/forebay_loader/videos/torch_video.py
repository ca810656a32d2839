"""``wds.torch_video`` where torchvision has no ``read_video`` any more (0.26 on): the same answer, from memory, without a temporary file.

``fb.enable()`` and the takeover put it in webdataset's place. Which of the two decodes is decided when the first clip comes: to ask
earlier would import torchvision in each process, whatever that reads.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

__all__ = ["give_back", "put_in_place", "take", "torch_video"]

SUFFIXES = frozenset({"mp4", "ogv", "mjpeg", "avi", "mov", "h264", "mpg", "webm", "wmv"})  # as webdataset has them
_WHERE = ("webdataset.autodecode", "webdataset")


def torch_video(key: str, data: bytes, time_limit_s: Optional[float] = 60.0) -> Optional[Tuple[Any, Any, Dict[str, Any]]]:
    """A decoder for ``.decode(wds.torch_video)``: None for a member that is no clip by its suffix.

    (T x H x W x 3 uint8, channels x samples float32, ``{"video_fps": …, "audio_fps": …}``), tensors, of all of the clip, upright. Sound is
    all there is, from its own begin to its own end, as ``torchvision.io.read_video`` gives it; sound that cannot be read is none, which
    ``fb.counters()["video_unheard"]`` counts. Raises ``VideoError`` for a clip that cannot be decoded to its end, where torchvision gave
    what came before, and ``VideoTimeout`` after ``time_limit_s``, None being never:
    ``.decode(partial(wds.torch_video, time_limit_s=None))``.
    """
    if key.rpartition(".")[2] not in SUFFIXES:
        return None
    stock = _stock()
    return _here(key, data, time_limit_s) if stock is None else stock(key, data)


def put_in_place() -> None:
    """Replace webdataset's decoder where that is imported; what is not yet is left to ``take``."""
    for name in _WHERE:
        if name in sys.modules:
            take(sys.modules[name])


def take(module: Any) -> None:
    """Replace the decoder in a module that has webdataset's own under its name."""
    found = getattr(module, "torch_video", None)
    if getattr(found, "__module__", "") == "webdataset.autodecode":
        torch_video.__wrapped__ = found  # type: ignore[attr-defined]
        module.torch_video = torch_video


def give_back() -> None:
    """Let webdataset have its own again."""
    stock = getattr(torch_video, "__wrapped__", None)
    for name in _WHERE:
        if getattr(sys.modules.get(name), "torch_video", None) is torch_video:
            sys.modules[name].torch_video = stock  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def _stock() -> Optional[Callable[..., Any]]:
    """webdataset's own decoder, where what it calls is there."""
    try:
        there = hasattr(importlib.import_module("torchvision.io"), "read_video")
    except ImportError:
        there = False
    if not there:
        return None
    own: Any = importlib.import_module("webdataset.autodecode").torch_video
    return getattr(own, "__wrapped__", own)  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _here_stage(time_limit_s: Optional[float]) -> Any:
    stage = importlib.import_module("forebay_loader.videos.stage").video(audio=True, members=SUFFIXES, time_limit_s=time_limit_s)
    stage.asked = replace(stage.asked, as_torchvision=True)
    return stage


def _here(key: str, data: bytes, time_limit_s: Optional[float]) -> Tuple[Any, Any, Dict[str, Any]]:
    torch = importlib.import_module("torch")
    frames, audio, info = _here_stage(time_limit_s)(key, data)
    said = {name: info[name] for name in ("video_fps", "audio_fps") if name in info}
    sound = torch.from_numpy(audio) if audio.size else torch.empty((1, 0), dtype=torch.float32)  # as torchvision has it
    return torch.from_numpy(frames), sound, said
