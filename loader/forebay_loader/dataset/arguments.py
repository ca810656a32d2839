"""The arguments of ``fb.WebDataset``: those of ``wds.WebDataset`` in both versions, and ours."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Mapping, Sequence

from forebay_loader.base.argument_types import check_reading

__all__ = ["Arguments", "with_positional"]

RESUMES = ("exact", "replay")


class Arguments(SimpleNamespace):
    """All arguments of ``fb.WebDataset``, with the same names. Its docstring says what each does."""

    def __init__(self, **given: Any) -> None:
        """Raise ``TypeError`` for a value of the wrong kind. Stages check their own arguments."""
        super().__init__(**given)
        try:
            _ = self._asks_shuffle
        except (TypeError, ValueError):
            raise TypeError(f"shardshuffle takes True, False, None or a number; got {self.shardshuffle!r}") from None
        if self.resume not in RESUMES:
            raise ValueError(f"resume takes {' or '.join(map(repr, RESUMES))}; got {self.resume!r}")
        check_reading(self.handler, self.select_files, self.rename_files, self.limits)

    @property
    def draws(self) -> bool:
        """Whether shards are drawn with replacement, without end."""
        return bool(self.resampled or self.mode == "resampled")

    @property
    def shuffles(self) -> bool:
        """Whether shards are permuted before they are split."""
        return self._asks_shuffle and not self.detshuffle and not self.draws

    @property
    def shuffle_buffer(self) -> int:
        """How many shards webdataset's own ``detshuffle`` holds after the split; 0 without it."""
        if not self.detshuffle or not self._asks_shuffle or self.draws:
            return 0
        return 100 if self.shardshuffle is True else int(self.shardshuffle)

    @property
    def seed_number(self) -> Any:
        """``seed``, else ``WDS_SEED``, else 0."""
        return int(os.environ.get("WDS_SEED") or 0) if self.seed is None else self.seed

    @property
    def asks_cache(self) -> bool:
        return self.cache_dir is not None or bool(os.environ.get("WDS_CACHE"))

    @property
    def _asks_shuffle(self) -> bool:
        return self.shardshuffle is not None and bool(self.shardshuffle > 0)  # True, or the size of a buffer


def with_positional(named: Mapping[str, Any], positional: Sequence[Any], order: Sequence[str]) -> dict[str, Any]:
    """``named`` together with ``positional`` under the names in ``order``. Raises ``TypeError`` if there are too many."""
    if len(positional) > len(order):
        raise TypeError(f"WebDataset() takes {len(order)} arguments here by position, {len(positional)} were given")
    return {**named, **dict(zip(order[: len(positional)], positional))}  # noqa: B905  # strict= is not of 3.9
