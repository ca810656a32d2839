"""``.decode(…)`` with decoders whose passes differ by epoch: webdataset's own stage, made anew for each pass."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from forebay_loader.base.epoch_stage import EpochDecoder, EpochStage

__all__ = ["DecodeStage"]


class DecodeStage(EpochStage):
    """``args`` and ``how`` are those of ``wds.WebDataset.decode``."""

    def __init__(self, args: Sequence[Any], how: Mapping[str, Any]) -> None:
        self._args = tuple(args)
        self._how = dict(how)
        self._began: Dict[int, Tuple[int, int, Optional[int]]] = {}  # by thread: what is known of its next pass

    def __repr__(self) -> str:
        return f"<decode {', '.join(map(repr, self._args))}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_began": {}}

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None) -> None:
        self._began[threading.get_ident()] = epoch, turn, phase

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        began = self._began.pop(threading.get_ident(), None)  # None outside fb.WebDataset: its decoders say what they make of that
        bound = [one.of_pass(*began) if began and isinstance(one, EpochDecoder) else one for one in self._args]
        made: Any = _Stock(lambda: samples)
        return iter(made.decode(*bound, **self._how))


class _Stock(DataPipeline, FluidInterface):
    """The stages of webdataset, of whichever version."""

    def __init__(self, source: Callable[[], Iterator[Any]]) -> None:
        super().__init__(source)
