"""``.decode(…)`` with decoders of clips: webdataset's stage, built again for each pass.

webdataset tells its decoders neither the pass nor the sample. Some decoders draw differently in each pass. Scans and error messages need
the sample. This stage tells decoders both.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from forebay_loader.base.epoch_stage import EpochDecoder, EpochStage
from forebay_loader.base.shown_text import shown_shard
from forebay_loader.meter.skips.recorded_handler import RecordedHandler, passes_over
from forebay_loader.meter.skips.skip_pass import current
from forebay_loader.videos.errors import VideoError

__all__ = ["DecodeStage"]


class DecodeStage(EpochStage):
    """``.decode(…)``; ``args`` and ``how`` are those of ``wds.WebDataset.decode``."""

    state_kind = "one"  # one sample out for each sample in

    def __init__(self, args: Sequence[Any], how: Mapping[str, Any]) -> None:
        self._args = tuple(args)
        self._how = dict(how)
        self.handler = how.get("handler")
        self._began: Dict[int, Tuple[int, int, Optional[int], int]] = {}  # thread id -> what begin() said of its next pass

    def __repr__(self) -> str:
        return f"<decode {', '.join(map(repr, self._args))}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_began": {}}

    @property
    def draws(self) -> bool:
        """Whether one of the decoders draws by the epoch."""
        return any(getattr(one, "draws", False) for one in self._args)

    def memo_print(self, of: Callable[[Any], Any]) -> Any:
        """What the results depend on, for ``fb.memo``. The handler does not count."""
        return [[of(one) for one in self._args], [[name, of(one)] for name, one in sorted(self._how.items()) if name != "handler"]]

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        self._began[threading.get_ident()] = epoch, turn, phase, place

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        began = self._began.pop(threading.get_ident(), None)  # None outside fb.WebDataset: the decoders then decide for themselves
        how, skips = self._how, current()
        handler = RecordedHandler(how["handler"], skips) if skips is not None and passes_over(how.get("handler")) else None
        names = _Names()
        bound = [one.of_pass(*began, names.sample) if began and isinstance(one, EpochDecoder) else one for one in self._args]
        bound = [names.naming(one) if callable(one) else one for one in bound]
        made: Any = _Stock(lambda: names.noting(samples))
        if handler is None:
            return iter(made.decode(*bound, **how))
        return handler.counting(made.decode(*bound, **{**how, "handler": handler}))


class _Names:
    """The sample that is decoded now. The decode stage takes one sample after the other."""

    def __init__(self) -> None:
        self._sample: Mapping[str, Any] = {}

    def noting(self, samples: Iterator[Any]) -> Iterator[Any]:
        for sample in samples:
            self._sample = sample if isinstance(sample, Mapping) else {}
            yield sample

    def sample(self) -> Mapping[str, Any]:
        return self._sample

    def naming(self, decoder: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
        """Return ``decoder``; errors that it raises name the clip and the shard."""

        def decode(key: str, data: Any) -> Any:
            try:
                return decoder(key, data)
            except VideoError as error:
                raise error.of(f"{self._sample.get('__key__', '')}{key}", shown_shard(self._sample.get("__url__", ""))) from error

        return decode


class _Stock(DataPipeline, FluidInterface):
    """A pipeline with the stage methods of the installed webdataset."""

    def __init__(self, source: Callable[[], Iterator[Any]]) -> None:
        super().__init__(source)
