"""What every reliability script says in the end: its figures, each with the limit it is held to; and the table made of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Figure", "as_json", "at_least", "at_most", "exactly", "lines"]


@dataclass(frozen=True)
class Figure:
    """One thing measured. ``limit`` in words ("" for one that is only told), ``ok`` whether it holds."""

    what: str
    value: float
    unit: str = ""
    limit: str = ""
    ok: bool = True


def exactly(what: str, value: float, wanted: float, unit: str = "") -> Figure:
    return Figure(what, value, unit, f"{wanted:g}", value == wanted)


def at_most(what: str, value: float, most: float, unit: str = "") -> Figure:
    return Figure(what, value, unit, f"at most {most:g}", value <= most)


def at_least(what: str, value: float, least: float, unit: str = "") -> Figure:
    return Figure(what, value, unit, f"at least {least:g}", value >= least)


def as_json(name: str, command: str, figures: Sequence[Figure]) -> str:
    """One line of JSON: {"name", "command", "figures": [{"what", "value", "unit", "limit", "ok"}]}."""
    return json.dumps({"name": name, "command": command, "figures": [asdict(figure) for figure in figures]})


def lines(figures: Sequence[Figure]) -> list[str]:
    """For people: one line a figure."""
    width = max(len(figure.what) for figure in figures)
    return [f"{figure.what.ljust(width)}  {figure.value:>12,.6g} {figure.unit:<8} {_held(figure)}".rstrip() for figure in figures]


def _held(figure: Figure) -> str:
    return (f"({figure.limit})" if figure.limit else "") + ("" if figure.ok else "   BROKEN")
