"""docs/takeover.md: its tables say what the code does."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from support.other_python import TAKEOVER

import forebay_loader as fb
from forebay_loader.plan.known_lists import STOCK_LISTS, STOCK_STAGES
from forebay_loader.takeover.openers import why_direct

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

PAGE = (Path(__file__).parents[3] / "docs" / "takeover.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    lines = [line for line in PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_openers_are_those_that_are_replaced() -> None:
    """The modules the hook waits for, and the names the takeover looks for in them."""
    named = {row[0].strip("`") for row in rows("How")}
    hooked = re.findall(r'"(webdataset\.\w+)"', (TAKEOVER / "forebay_takeover_hook.py").read_text())
    assert {".".join(name.split(".")[:2]) for name in named} == set(hooked)
    sought = re.findall(r'\("(\w+)", _[a-z_]+\)', (TAKEOVER.parent / "openers.py").read_text())
    assert {name.split(".")[2] for name in named if name.count(".") == 2} == set(sought)
    for module in hooked:
        import_module(module)


def test_what_is_announced_at_once_is_what_is_known() -> None:
    """Every list and stage of webdataset's that is known as one, by the name that a pipeline has it under; and no other."""
    known = {name.strip("_") for names in (STOCK_LISTS, STOCK_STAGES) for found in names.values() for name in found}
    at_once, later = (set(re.findall(r"`([A-Za-z_0-9]+)`", row[0])) for row in rows("What is announced when"))
    assert known | {"detshuffle", "detshuffle2"} == at_once
    assert not known & (later - {"shuffle"})


@pytest.mark.parametrize("row", rows("Who went direct"), ids=lambda row: row[0])
def test_reasons(row: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example goes direct for the reason beside it."""
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")
    fb.enable()
    assert why_direct({"url": row[0].strip("`")}) == row[1]
