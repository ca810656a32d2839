"""No module imports itself by way of others, not even for a type alone: each can be read, and understood, after those it names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "proxy" / "forebay_proxy", ROOT / "loader" / "forebay_loader", ROOT / "stage" / "forebay_stage"]


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Of each module, by its full name, the others among ``sources`` that it imports: anywhere in it, also under ``TYPE_CHECKING``."""
    return {name: {found for found in _named(source) if found in sources} for name, source in sources.items()}


def _named(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a module of that package


def circle(sources: Mapping[str, str]) -> list[str]:
    """One circle, its first module last again; empty where there is none."""
    try:
        TopologicalSorter(imports_of(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    "back", ["import a", "from a import x", "if TYPE_CHECKING:\n    from a import X", "def f():\n    from a import x"]
)  # fmt: skip
def test_what_counts_as_a_circle(back: str) -> None:
    """A module that is imported back, at once, for a type, or only when a function runs."""
    assert set(circle({"a": "from p import b", "p": "", "p.b": "import c", "c": back})) == {"a", "p.b", "c"}


def test_what_counts_as_none() -> None:
    """Two ways to one module, and a module of another distribution."""
    assert circle({"a": "import b, c", "b": "import c", "c": "import os"}) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_module_imports_itself_by_way_of_others(package: Path) -> None:
    """Neither in the sidecar nor in the loader nor in the stage."""
    assert circle({_name(path): path.read_text("utf-8") for path in package.rglob("*.py")}) == []


def _name(path: Path) -> str:
    parts = path.with_suffix("").relative_to(ROOT).parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
