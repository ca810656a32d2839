"""Sizes as arguments say them, and what they are in pixels."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_loader.videos.decode.frame_size import check_size


@pytest.mark.parametrize("size", ["224", 1.5, (1, 2, 3), (1.0, 2), True, object()])
def test_what_is_no_size(size: Any) -> None:
    """Said with the value, where it is given."""
    with pytest.raises(TypeError, match="size takes None"):
        check_size(size)


@pytest.mark.parametrize("size", [0, -1, (0, 5), (5, 1 << 15)])
def test_sizes_that_cannot_be(size: Any) -> None:
    """Neither nothing nor what no picture has."""
    with pytest.raises(ValueError, match="1 to 16384"):
        check_size(size)
