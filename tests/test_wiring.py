"""Nobody puts a callback into another object after it was built: a second one would replace the first, and nobody would see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import forebay_proxy

PACKAGE = Path(forebay_proxy.__file__).parent


def late_slots(source: str) -> Iterator[tuple[int, str]]:
    """Where a method of this class, or a lambda, is set on another object, and where an empty place for one is made."""
    for house in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)):
        methods = {node.name for node in house.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in ast.walk(house):
            if isinstance(node, ast.Assign) and any(map(_is_elsewhere, node.targets)) and _is_call_back(node.value, methods):
                yield node.lineno, ast.unparse(node)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and isinstance(node.value, ast.Lambda):
                yield node.lineno, ast.unparse(node)


def _is_elsewhere(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not (isinstance(target.value, ast.Name) and target.value.id == "self")


def _is_call_back(value: ast.expr, methods: set[str]) -> bool:
    if isinstance(value, ast.Attribute):
        return isinstance(value.value, ast.Name) and value.value.id == "self" and value.attr in methods
    return isinstance(value, ast.Lambda)


def test_callbacks_are_given_when_an_object_is_built() -> None:
    """Or the fact goes to ``Events``, which any number may hear; ``app/composition.py`` says who."""
    found = {
        (str(path.relative_to(PACKAGE)), text): line
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in late_slots(path.read_text())
    }
    assert not found, {f"{name}:{line}": text for (name, text), line in found.items()}
