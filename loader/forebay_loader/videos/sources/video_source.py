"""What a source of video is asked."""

from __future__ import annotations

from typing import Any, Protocol, Sequence, Tuple

from forebay_loader.videos.clip_info import ClipInfo

__all__ = ["VideoSource"]


class VideoSource(Protocol):
    """One clip. It pickles, and nothing of it is open until ``open``: each worker opens its own.

    Every method but ``close`` opens what is not open. All raise ``VideoError`` naming clip and shard, and what reading the bytes raises:
    ``fb.ShardReadError``, ``fb.ShardChanged``, ``fb.ProxyUnreachable``, ``OSError`` for a file.
    """

    def open(self) -> ClipInfo:
        """What is known of the clip. Of a live one ``frames`` is 0: nobody knows how many will come."""
        ...

    def frame(self, index: int) -> Any:
        """Frame ``index`` of the clip in presentation order: ``height x width x 3`` uint8 (RGB)."""
        ...

    def frames(self, indices: Sequence[int]) -> Any:
        """Frames by number, in the order asked for, one asked for twice given twice: ``T x height x width x 3`` uint8 (RGB)."""
        ...

    def audio(self, begin_s: float, end_s: float) -> Tuple[Any, int]:
        """Sound between two times on the clip's clock: (``channels x samples`` float32 from -1 to 1, samples a second).

        Shorter where the sound ends earlier; ``(0 x 0, 0)`` without any.
        """
        ...

    def close(self) -> None:
        """Let go of what is open. Safe to repeat; the source can be used again."""
        ...
