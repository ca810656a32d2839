"""docs/batches.md: its table has the arguments of fb.batched and their defaults."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import forebay_loader as fb

PAGE = (Path(__file__).parents[3] / "docs" / "batches.md").read_text()


def test_the_table_has_every_argument() -> None:
    """Names and defaults, in the order of the signature; the function that collates is said in words."""
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.M)
    own = inspect.signature(fb.batched).parameters.values()
    assert [(name, default.strip("`").replace('"', "'")) for name, default in rows] == [
        (one.name, "webdataset's" if one.name == "collate" else repr(one.default)) for one in own
    ]
