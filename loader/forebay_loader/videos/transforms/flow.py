"""How far each pixel moved from one frame to the next: OpenCV's dense optical flow, each pair of frames once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy

try:
    import cv2
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("optical flow needs OpenCV: install forebay[flow]", name=error.name) from error

__all__ = ["optical_flow"]

_LEAST = 16  # pixels of a side: less, and OpenCV's pyramids have no level


def optical_flow(frames: Any, method: str = "dis", *, numbers: Optional[Sequence[int]] = None, threads: int = 1) -> Any:
    """Where the pixels of each frame went in the next one.

    - ``frames``: T x H x W x 3 uint8 (RGB), or T x H x W uint8 (grey), numpy; H and W from 16.
    - ``method``: ``dis``, dense inverse search (Kroeger et al. 2016), the faster one; or ``farneback``, polynomials (Farnebäck 2003).
    - ``numbers``: the frames' numbers in the clip (``Sampling.frames``), where they are known: a frame that is repeated moved nowhere, and
      a pair that comes again is not computed again.
    - ``threads``: of OpenCV, for this call alone. Not more by default: workers are processes already, and threads that OpenCV started
      before a fork are missing behind it.

    Returns T - 1 x H x W x 2 float32: (x to the right, y down), in pixels a frame; for T of 0 or 1 none. Raises ``TypeError`` and
    ``ValueError`` for other arguments.
    """
    grey = _grey(frames)
    if numbers is not None and len(numbers) != len(grey):
        raise ValueError(f"numbers are of each frame: {len(numbers)} of {len(grey)}")
    found = numpy.zeros((max(len(grey) - 1, 0), *grey.shape[1:3], 2), numpy.float32)
    done: dict[tuple[int, int], int] = {}  # the pair's numbers -> where its flow is
    with _threads(threads):
        compute = _method(method)
        for place in range(len(found)):
            pair = (place, place + 1) if numbers is None else (numbers[place], numbers[place + 1])
            if pair in done:
                found[place] = found[done[pair]]
            elif pair[0] != pair[1]:
                found[place] = compute(grey[place], grey[place + 1])
                done[pair] = place
    return found


def _grey(frames: Any) -> Any:
    if not isinstance(frames, numpy.ndarray) or frames.dtype != numpy.uint8:
        raise TypeError(f"frames are T x H x W x 3 uint8, numpy; got {getattr(frames, 'dtype', type(frames).__name__)}")
    if frames.ndim not in (3, 4) or (frames.ndim == 4 and frames.shape[3] != 3) or min(frames.shape[1:3]) < _LEAST:
        raise ValueError(f"frames are T x H x W x 3 or T x H x W, H and W from {_LEAST}; got shape {frames.shape}")
    if frames.ndim == 3:
        return numpy.ascontiguousarray(frames)
    grey = numpy.empty(frames.shape[:3], numpy.uint8)
    for place, frame in enumerate(frames):  # each once, though it is in two pairs
        cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY, grey[place])
    return grey


def _method(name: str) -> Callable[[Any, Any], Any]:
    cv: Any = cv2  # its hints leave out what OpenCV's documentation has
    if name == "dis":
        search = cv.DISOpticalFlow_create(cv.DISOPTICAL_FLOW_PRESET_FAST)  # one for all pairs: it keeps its buffers
        return lambda before, behind: search.calc(before, behind, None)
    if name == "farneback":  # its author's values, as OpenCV's documentation has them
        return lambda before, behind: cv.calcOpticalFlowFarneback(before, behind, None, 0.5, 3, 15, 3, 5, 1.2, 0)
    raise ValueError(f"method is one of dis, farneback; got {name!r}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = cv2.getNumThreads()
    cv2.setNumThreads(count)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
