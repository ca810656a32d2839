"""Transforms of what ``fb.video`` gives: functions of arrays. OpenCV and torch are imported when one that needs them is called.

| transform | from | to |
|---|---|---|
| ``frame_difference`` | frames | what changed from each to the next |
| ``optical_flow`` | frames | how far each pixel moved to the next (extra ``flow``: OpenCV) |
| ``mel_spectrogram`` | audio | energy by time and pitch (torch) |

``dataset.map(lambda sample: {**sample, "flow": optical_flow(sample["frames"])})``

Of the mel spectrogram: the pitch of f Hz is 2595 log10(1 + f / 700) mel (O'Shaughnessy, Speech Communication, 1987; the HTK book). Filters
are triangles, evenly wide in mel, each from the middle of the one below to that of the one above (Davis and Mermelstein 1980), their peak
1. Power is that of a short-time Fourier transform under a Hann window. These are the definitions of torchaudio's ``MelSpectrogram`` with
``mel_scale="htk"``, ``norm=None`` and ``pad_mode="constant"``; torchaudio itself is not needed.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

import numpy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["frame_difference", "mel_filters", "mel_spectrogram", "optical_flow"]

_LEAST_SIDE = 16  # pixels: less, and OpenCV's pyramids have no level
_LEAST_POWER = 1e-10  # what silence counts as: a logarithm needs something


def frame_difference(frames: Any) -> Any:
    """Of frames 1 to T - 1 each less the one before it, pixel by pixel.

    - ``frames``: T x H x W x C uint8, numpy or torch; any shape behind T.

    Returns T - 1 x H x W x C int16, -255 to 255, of the same kind; for T of 0 or 1 none. Raises ``TypeError`` for frames that are not
    uint8: of others the difference may have no room.
    """
    if str(frames.dtype).rpartition(".")[2] != "uint8" or frames.ndim < 1:
        raise TypeError(f"frames are T x H x W x C uint8; got {frames.dtype}, shape {tuple(frames.shape)}")
    if isinstance(frames, numpy.ndarray):
        return numpy.subtract(frames[1:], frames[:-1], dtype=numpy.int16)
    wide = frames.short()
    return wide[1:] - wide[:-1]


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
    cv2 = _opencv()
    grey = _grey(frames, cv2)
    if numbers is not None and len(numbers) != len(grey):
        raise ValueError(f"numbers are of each frame: {len(numbers)} of {len(grey)}")
    found = numpy.zeros((max(len(grey) - 1, 0), *grey.shape[1:3], 2), numpy.float32)
    done: dict[tuple[int, int], int] = {}  # the pair's numbers -> where its flow is
    with _threads(cv2, threads):
        compute = _method(method, cv2)
        for place in range(len(found)):
            pair = (place, place + 1) if numbers is None else (numbers[place], numbers[place + 1])
            if pair in done:
                found[place] = found[done[pair]]
            elif pair[0] != pair[1]:
                found[place] = compute(grey[place], grey[place + 1])
                done[pair] = place
    return found


def _opencv() -> Any:
    try:
        import cv2  # noqa: PLC0415  # the extra `flow`
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("optical flow needs OpenCV: install forebay[flow]", name=error.name) from error
    return cv2


def _grey(frames: Any, cv2: Any) -> Any:
    if not isinstance(frames, numpy.ndarray) or frames.dtype != numpy.uint8:
        raise TypeError(f"frames are T x H x W x 3 uint8, numpy; got {getattr(frames, 'dtype', type(frames).__name__)}")
    if frames.ndim not in (3, 4) or (frames.ndim == 4 and frames.shape[3] != 3) or min(frames.shape[1:3]) < _LEAST_SIDE:
        raise ValueError(f"frames are T x H x W x 3 or T x H x W, H and W from {_LEAST_SIDE}; got shape {frames.shape}")
    if frames.ndim == 3:
        return numpy.ascontiguousarray(frames)
    grey = numpy.empty(frames.shape[:3], numpy.uint8)
    for place, frame in enumerate(frames):  # each once, though it is in two pairs
        cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY, grey[place])
    return grey


def _method(name: str, cv2: Any) -> Callable[[Any, Any], Any]:
    if name == "dis":
        search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST)  # one for all pairs: it keeps its buffers
        return lambda before, behind: search.calc(before, behind, None)
    if name == "farneback":  # its author's values, as OpenCV's documentation has them
        return lambda before, behind: cv2.calcOpticalFlowFarneback(before, behind, None, 0.5, 3, 15, 3, 5, 1.2, 0)
    raise ValueError(f"method is one of dis, farneback; got {name!r}")


@contextmanager
def _threads(cv2: Any, count: int) -> Iterator[None]:
    before = cv2.getNumThreads()
    cv2.setNumThreads(count)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def mel_spectrogram(
    audio: Any,
    rate_hz: int,
    *,
    mels: int = 80,
    window_s: float = 0.025,
    hop_s: float = 0.010,
    low_hz: float = 0.0,
    high_hz: Optional[float] = None,
    log: bool = True,
) -> Tensor:
    """Energy in ``mels`` bands of pitch, every ``hop_s``.

    - ``audio``: channels x samples float (or samples alone), -1 to 1, numpy or torch.
    - ``rate_hz``: its samples a second.
    - ``mels``: bands; ``low_hz``, ``high_hz``: where the first begins and the last ends, by default at 0 and at half the rate.
    - ``window_s``, ``hop_s``: length of a window, and from one to the next, in seconds. A window has an even number of samples and lies
      around its time; before and after the sound there is silence.
    - ``log``: the natural logarithm of the power, at least that of 1e-10; False: the power itself.

    Returns channels x mels x frames float32 (or mels x frames), frames = samples // hop + 1, on the device of ``audio``. A sine of
    amplitude 1 has a power of (window / 4) ** 2 in its bin, window in samples. Raises ``TypeError`` and ``ValueError`` for other arguments.
    """
    import torch  # noqa: PLC0415  # not for who wants no sound

    sound = torch.as_tensor(audio)
    if not sound.is_floating_point() or sound.ndim not in (1, 2):
        raise TypeError(f"audio is channels x samples float; got {sound.dtype}, shape {tuple(sound.shape)}")
    high_hz = rate_hz / 2 if high_hz is None else high_hz
    window, hop = 2 * round(window_s * rate_hz / 2), round(hop_s * rate_hz)
    if window < 2 or hop < 1 or mels < 1 or not 0 <= low_hz < high_hz <= rate_hz / 2:
        told = f"mels={mels}, window_s={window_s}, hop_s={hop_s}, low_hz={low_hz}, high_hz={high_hz}"
        raise ValueError(f"of {rate_hz} Hz no mel spectrogram can be made with {told}")
    sound = sound.to(torch.float32)
    shape = torch.hann_window(window, device=sound.device)
    if sound.ndim == 2 and not len(sound):
        return sound.new_zeros((0, mels, sound.shape[1] // hop + 1))
    if sound.numel() == 0:
        sound = sound.new_zeros((*sound.shape[:-1], 1))  # no samples: one window of silence
    spectrum = torch.stft(sound, window, hop, window=shape, center=True, pad_mode="constant", return_complex=True)
    power = mel_filters(rate_hz, window, mels, low_hz, high_hz).to(sound.device) @ (spectrum.real**2 + spectrum.imag**2)
    return power.clamp(min=_LEAST_POWER).log() if log else power


@lru_cache(maxsize=16)
def mel_filters(rate_hz: int, window: int, mels: int, low_hz: float, high_hz: float) -> Tensor:
    """``mels`` x (window // 2 + 1) float32: how much each bin of the transform counts in each band, 0 to 1. Never raises."""
    import torch  # noqa: PLC0415  # not for who wants no sound

    bins_hz = torch.linspace(0, rate_hz / 2, window // 2 + 1, dtype=torch.float64)
    edges_mel = torch.linspace(_mel(low_hz), _mel(high_hz), mels + 2, dtype=torch.float64)
    edges_hz = 700 * (10 ** (edges_mel / 2595) - 1)
    below, middle, above = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising, falling = (bins_hz - below) / (middle - below), (above - bins_hz) / (above - middle)
    return torch.minimum(rising, falling).clamp(min=0).to(torch.float32)


def _mel(hz: float) -> float:
    return 2595 * math.log10(1 + hz / 700)
