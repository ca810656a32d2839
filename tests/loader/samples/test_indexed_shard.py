"""How a sample of a shard is named by its number, and which shards have numbers."""

from __future__ import annotations

import pytest

from forebay_loader import ShardReadError
from forebay_loader.samples.indexed_shard import place, shard_source


@pytest.mark.parametrize(("number", "found"), [(0, 0), (4, 4), (-1, 4), (-5, 0)])
def test_a_number_may_count_from_behind(number: int, found: int) -> None:
    """As of any sequence."""
    assert place(number, 5) == found


@pytest.mark.parametrize("number", [5, -6])
def test_a_number_beyond_is_an_error(number: int) -> None:
    """Which says how many there are."""
    with pytest.raises(IndexError, match=f"sample {number} of 5"):
        place(number, 5)


def test_only_what_the_sidecar_reads_has_an_index() -> None:
    """A command of unknown kind is webdataset's."""
    with pytest.raises(ShardReadError, match="left to webdataset"):
        shard_source("pipe:zcat a.tar.gz")
