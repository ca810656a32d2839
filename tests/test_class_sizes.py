"""A class is one noun: what holds more than a dozen things, or answers to more than a score of names, holds another noun as a rule."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for root in ("proxy", "loader") for path in sorted((ROOT / root).rglob("*.py"))]
MOST_ATTRIBUTES, MOST_METHODS = 13, 20

# Those with more, how many they have, and why they are one noun all the same. Lower a number with its class; a new line needs a reason.
ATTRIBUTES = {
    "Settings": 32,  # one a flag, a variable and a key of the settings file
    "Usage": 25,  # one a level that /v1/status and the metrics show
    "PageView": 14,  # one a word, or a text, of a page of the meter
    "Arguments": 27,  # one an argument of wds.WebDataset
    "SkipPass": 13,
    "Row": 14,  # one a field of an index row
    "SimulatedOutcome": 13,  # one a figure of a replay
    "Track": 18,  # one a fact of a film's track, in the order of its boxes
}
METHODS: dict[str, int] = {}


def classes(source: str) -> Iterator[tuple[str, int, int]]:
    """(name, attributes, methods) of each class. Attributes: fields of its body, and whatever a method sets on ``self``; methods: less
    ``__init__`` and its like.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            own = {name for method in methods for name in _set_on_self(method)} | set(_fields(node))
            yield node.name, len(own), sum(not method.name.startswith("__") for method in methods)


@functools.cache
def of_sources() -> list[tuple[str, str, int, int]]:
    """(path, name, attributes, methods) of each class of ours."""
    return [(str(path.relative_to(ROOT)), *one) for path in SOURCES for one in classes(path.read_text("utf-8"))]


def _fields(house: ast.ClassDef) -> Iterator[str]:
    for each in house.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation):
            yield each.target.id


def _set_on_self(method: ast.AST) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
            yield node.attr


def test_what_counts() -> None:
    """Each name once, however it is set; what is set on others is theirs, a constant of the class is nobody's."""
    source = (
        "class House:\n"
        "    rooms: int = 0\n"
        "    KINDS: ClassVar[int] = 3\n"
        "    def __init__(self, plan):\n"
        "        self.plan, self._doors = plan, 0\n"
        "        self.walls: list[int] = []\n"
        "        plan.house = self.plan.name = self\n"
        "    async def open(self):\n"
        "        self._doors += 1\n"
        "        with self.plan as self.way: ...\n"
    )
    assert list(classes(source)) == [("House", 5, 1)]


def test_a_class_holds_a_dozen_things_at_most() -> None:
    """Or it says above why it has more."""
    found = {f"{path}: {name}": count for path, name, count, _ in of_sources() if count > ATTRIBUTES.get(name, MOST_ATTRIBUTES)}
    assert found == {}


def test_a_class_answers_to_a_score_of_names_at_most() -> None:
    """Properties count: a reader has to know them all the same."""
    found = {f"{path}: {name}": count for path, name, _, count in of_sources() if count > METHODS.get(name, MOST_METHODS)}
    assert found == {}
