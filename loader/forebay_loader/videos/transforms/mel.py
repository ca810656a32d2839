"""Energy of a sound by time and pitch, in torch alone: torchaudio is not needed, and builds of it follow torch's only for a while.

The pitch of f Hz is 2595 log10(1 + f / 700) mel (O'Shaughnessy, Speech Communication, 1987; the HTK book). Filters are triangles, evenly
wide in mel, each from the middle of the one below to that of the one above (Davis and Mermelstein 1980), their peak 1. Power is that of a
short-time Fourier transform under a Hann window. These are the definitions of torchaudio's ``MelSpectrogram`` with ``mel_scale="htk"``,
``norm=None`` and ``pad_mode="constant"``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch

__all__ = ["mel_filters", "mel_spectrogram"]

_LEAST_POWER = 1e-10  # what silence counts as: a logarithm needs something


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
) -> torch.Tensor:
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
def mel_filters(rate_hz: int, window: int, mels: int, low_hz: float, high_hz: float) -> torch.Tensor:
    """``mels`` x (window // 2 + 1) float32: how much each bin of the transform counts in each band, 0 to 1. Never raises."""
    bins_hz = torch.linspace(0, rate_hz / 2, window // 2 + 1, dtype=torch.float64)
    edges_mel = torch.linspace(_mel(low_hz), _mel(high_hz), mels + 2, dtype=torch.float64)
    edges_hz = 700 * (10 ** (edges_mel / 2595) - 1)
    below, middle, above = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising, falling = (bins_hz - below) / (middle - below), (above - bins_hz) / (above - middle)
    return torch.minimum(rising, falling).clamp(min=0).to(torch.float32)


def _mel(hz: float) -> float:
    return float(2595 * torch.log10(torch.tensor(1 + hz / 700, dtype=torch.float64)))
