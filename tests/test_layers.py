"""One way only between the rooms: import-linter's contracts, and what runs inside training stays plain."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIRE, LOADER = ROOT / "proxy" / "forebay_proxy" / "wire", ROOT / "loader" / "forebay_loader"


@pytest.fixture(scope="module")
def imported() -> dict[Path, set[str]]:
    """Of each file that runs inside training, every module it imports by its full name, wherever in the file."""
    return {path: _imports(path) for root in (WIRE, LOADER) for path in sorted(root.rglob("*.py"))}


def _imports(path: Path) -> set[str]:
    """Raises ``SyntaxError`` for what Python 3.9 cannot parse."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def beyond_the_wire(imported: dict[Path, set[str]], root: Path, tops: set[str]) -> dict[str, set[str]]:
    """Of each file below ``root`` that has some, its imports with one of the first names ``tops`` that are not of the wire."""
    found = {
        str(path.relative_to(ROOT)): {name for name in names if name.split(".")[0] in tops and not name.startswith("forebay_proxy.wire")}
        for path, names in imported.items()
        if path.is_relative_to(root)
    }
    assert len(found) > 10
    return {path: names for path, names in found.items() if names}


def test_contracts_hold() -> None:
    """Every contract in pyproject.toml holds (their text is there)."""
    beside = Path(sys.executable).with_name("lint-imports")
    command = str(beside) if beside.exists() else shutil.which("lint-imports")
    if command is None:
        pytest.skip("import-linter is not installed here; scripts/test installs it")
    done = subprocess.run([command, "--no-cache"], check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wire_is_stdlib_only(imported: dict[Path, set[str]]) -> None:
    """The wire package imports the standard library and itself: it runs in whatever interpreter training uses."""
    tops = {name.split(".")[0] for names in imported.values() for name in names}
    assert beyond_the_wire(imported, WIRE, tops - sys.stdlib_module_names) == {}


def test_loader_sees_the_proxy_through_the_wire(imported: dict[Path, set[str]]) -> None:
    """The loader imports forebay_proxy.wire and nothing more of the proxy."""
    assert beyond_the_wire(imported, LOADER, {"forebay_proxy"}) == {}


def test_training_side_parses_on_python_39(imported: dict[Path, set[str]]) -> None:
    """What runs inside training keeps to the grammar of Python 3.9: no match statement, nothing newer; the walk above parsed it so."""
    assert {WIRE / "__init__.py", LOADER / "__init__.py", LOADER / "takeover" / "__init__.py"} <= imported.keys()
