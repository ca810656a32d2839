"""The same command goes on, another one is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay_stage.errors import StageRefused
from forebay_stage.spec import Input, StageSpec, check_same, document

SPEC = StageSpec(("resize,side=8",), samples_per_shard=10)
INPUTS = [Input("http://h/0.tar", '"a"', 10), Input("http://h/1.tar", '"b"', 11)]


def test_the_same_is_the_same() -> None:
    """Nothing is said."""
    check_same(document(SPEC, INPUTS), document(SPEC, list(INPUTS)), "DST")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples_per_shard": 20}, "--samples-per-shard 10, not 20"),
        ({"maps": ()}, "--map resize,side=8, not none"),
        ({"shuffle": 0}, "--shuffle none, not 0"),
        ({"zstd": 3}, "--zstd none, not 3"),
    ],
)
def test_another_option_is_named(change: dict[str, Any], said: str) -> None:
    """What was asked for then, and what is now."""
    with pytest.raises(StageRefused, match=said):
        check_same(document(SPEC, INPUTS), document(replace(SPEC, **change), INPUTS), "DST")


def test_another_list_of_shards_is_told() -> None:
    """By its length and its first."""
    with pytest.raises(StageRefused, match=r"SRC 2 shards from http://h/0\.tar on, not 1 shards from http://h/1\.tar on"):
        check_same(document(SPEC, INPUTS), document(SPEC, INPUTS[1:]), "DST")


def test_a_replaced_shard_is_named() -> None:
    """With both versions: the output would mix them."""
    now = [INPUTS[0], Input("http://h/1.tar", '"c"', 11)]
    with pytest.raises(StageRefused, match=r'shard http://h/1\.tar: was replaced .* \(11 bytes, "b"; now 11 bytes, "c"\)'):
        check_same(document(SPEC, INPUTS), document(SPEC, now), "DST")


@pytest.mark.parametrize("found", [b"", b"[]", b"{", b'{"format": 1}', b'{"format": 2}'])
def test_what_no_stage_wrote_is_refused(found: bytes) -> None:
    """Never a traceback."""
    with pytest.raises(StageRefused):
        check_same(found, document(SPEC, INPUTS), "DST")
