"""``wds.torch_video`` for torchvision 0.26 and later, which has no ``read_video``: the same result, from memory, without a temporary file.

``fb.enable()`` and the takeover put it in the place of webdataset's. The first clip decides which of the two decodes. To ask earlier would
import torchvision in each process, even if it decodes no video.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

__all__ = ["give_back", "put_in_place", "take", "torch_video"]

SUFFIXES = frozenset({"mp4", "ogv", "mjpeg", "avi", "mov", "h264", "mpg", "webm", "wmv"})  # as in webdataset
_WHERE = ("webdataset.autodecode", "webdataset")


def torch_video(key: str, data: bytes, time_limit_s: Optional[float] = 60.0) -> Optional[Tuple[Any, Any, Dict[str, Any]]]:
    """A decoder for ``.decode(wds.torch_video)``. Returns None for a member that is no clip by its suffix.

    Otherwise it returns tensors of the whole, upright clip: (T x H x W x 3 uint8, channels x samples float32, ``{"video_fps": …,
    "audio_fps": …}``). The sound is complete, from its own start to its own end, as from ``torchvision.io.read_video``. It is empty if it
    cannot be read; ``fb.counters()["video_unheard"]`` counts that.

    Raises ``VideoError`` for a clip that cannot be decoded to its end; torchvision returned the part before. Raises ``VideoTimeout`` after
    ``time_limit_s`` seconds. None means never: ``.decode(partial(wds.torch_video, time_limit_s=None))``.
    """
    if key.rpartition(".")[2] not in SUFFIXES:
        return None
    stock = _stock()
    return _here(key, data, time_limit_s) if stock is None else stock(key, data)


def put_in_place() -> None:
    """Replace webdataset's decoder if it is imported. ``take`` does it later otherwise."""
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
    """Restore webdataset's own decoder."""
    stock = getattr(torch_video, "__wrapped__", None)
    for name in _WHERE:
        if getattr(sys.modules.get(name), "torch_video", None) is torch_video:
            sys.modules[name].torch_video = stock  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def _stock() -> Optional[Callable[..., Any]]:
    """webdataset's own decoder; None if torchvision no longer has the function it calls."""
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
    sound = torch.from_numpy(audio) if audio.size else torch.empty((1, 0), dtype=torch.float32)  # as from torchvision
    return torch.from_numpy(frames), sound, said
