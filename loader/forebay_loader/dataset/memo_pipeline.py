"""Pipelines in which ``fb.memo(…)`` is a stage like others."""

from __future__ import annotations

from typing import Any

from webdataset.pipeline import DataPipeline

from forebay_loader.memos.stage import folded

__all__ = ["MemoPipeline"]


class MemoPipeline(DataPipeline):
    """``fb.memo(…)`` keeps what the stage before it makes: it is put around that one, which makes samples before others see them."""

    def compose(self, *args: Any) -> Any:
        """webdataset's: the same pipeline with these stages behind its own."""
        made = super().compose(*args)
        made.pipeline = folded(made.pipeline, getattr(self, "_handler", None))
        return made
