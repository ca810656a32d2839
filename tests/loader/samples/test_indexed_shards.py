"""What a sequence over many shards takes for a list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay_loader.samples.indexed_shards import IndexedShards


@pytest.mark.parametrize("urls", [Path("a.tar"), b"a.tar", None, 7, ["s3://bucket/a.tar", Path("b.tar")], [b"s3://bucket/a.tar"]])
def test_shards_are_named_by_strings(urls: Any) -> None:
    """What is none is told by its place and type, before anything is asked."""
    with pytest.raises(TypeError, match=r"entry \d of \d is (PosixPath|bytes|NoneType|int)"):
        IndexedShards(urls)


@pytest.mark.parametrize("urls", [[], ()])
def test_an_empty_list_is_an_error(urls: Any) -> None:
    """As fb.WebDataset says it."""
    with pytest.raises(ValueError, match="the list of shards is empty"):
        IndexedShards(urls)
