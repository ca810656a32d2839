"""Where a clip that is to be scanned lies, as it is told to the process that decodes it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClipAddress"]


@dataclass(frozen=True)
class ClipAddress:
    """The object ``url``; or, where ``suffix`` is not "", that member of sample ``number`` of the shard ``url``.

    - ``etag``: the version that is meant.
    - ``name``, ``shard``: what errors say; neither holds a token.
    """

    url: str
    etag: str
    name: str
    shard: str = ""
    number: int = 0
    suffix: str = ""
