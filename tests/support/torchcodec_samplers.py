"""torchcodec's own samplers, run without FFmpeg: they are Python, and only what they hand to the decoder is looked at.

``import torchcodec`` loads libraries that need a system FFmpeg. Its samplers need two names of it, which stand in for them here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

__all__ = ["FakeDecoder", "torchcodec_samplers"]


@dataclass
class _Batch:
    data: Any
    pts_seconds: Any
    duration_seconds: Any


@dataclass
class FakeDecoder:
    """Notes the frames, or times, that it is asked for."""

    frames: int
    begin_s: float = 0.0
    end_s: float = 1.0
    asked: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return self.frames

    @property
    def metadata(self) -> types.SimpleNamespace:
        fps = self.frames / (self.end_s - self.begin_s)
        return types.SimpleNamespace(average_fps=fps, begin_stream_seconds=self.begin_s, end_stream_seconds=self.end_s)

    def get_frames_at(self, indices: list[Any]) -> _Batch:
        return self._noted(indices)

    def get_frames_played_at(self, seconds: list[Any]) -> _Batch:
        return self._noted(seconds)

    def _noted(self, asked: list[Any]) -> _Batch:
        self.asked += [one.item() if isinstance(one, torch.Tensor) else one for one in asked]
        return _Batch(torch.zeros(len(asked), 1, 1, 1), torch.zeros(len(asked)), torch.zeros(len(asked)))


def torchcodec_samplers() -> types.ModuleType:
    """Its module ``samplers``. Skips the test module where torchcodec is not installed."""
    spec = importlib.util.find_spec("torchcodec")
    if spec is None:
        pytest.skip("torchcodec is not installed here; the group `test` names it", allow_module_level=True)
    package, decoders = types.ModuleType("torchcodec"), types.ModuleType("torchcodec.decoders")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.FrameBatch, decoders.VideoDecoder = _Batch, object  # type: ignore[attr-defined]
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchcodec"}
    sys.modules.update({"torchcodec": package, "torchcodec.decoders": decoders})
    try:
        return importlib.import_module("torchcodec.samplers")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchcodec"]:
            del sys.modules[name]
        sys.modules.update(before)
