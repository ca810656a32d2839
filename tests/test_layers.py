"""One way only between the rooms: import-linter's contracts, and what runs inside training stays plain."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIRE = sorted((ROOT / "proxy" / "forebay_proxy" / "wire").rglob("*.py"))
LOADER = sorted((ROOT / "loader" / "forebay_loader").rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module a file imports by its full name, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_contracts_hold() -> None:
    """Every contract in pyproject.toml holds (their text is there)."""
    beside = Path(sys.executable).with_name("lint-imports")
    command = str(beside) if beside.exists() else shutil.which("lint-imports")
    if command is None:
        pytest.skip("import-linter is not installed here; scripts/test installs it")
    done = subprocess.run([command, "--no-cache"], check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WIRE, ids=lambda path: str(path.relative_to(ROOT)))
def test_wire_is_stdlib_only(path: Path) -> None:
    """The wire package imports the standard library and itself: it runs in whatever interpreter training uses."""
    foreign = {name for name in imports(path) if name.split(".")[0] not in sys.stdlib_module_names}
    assert all(name.startswith("forebay_proxy.wire") for name in foreign), foreign


@pytest.mark.parametrize("path", LOADER, ids=lambda path: str(path.relative_to(ROOT)))
def test_loader_sees_the_proxy_through_the_wire(path: Path) -> None:
    """The loader imports forebay_proxy.wire and nothing more of the proxy."""
    ours = {name for name in imports(path) if name.split(".")[0] == "forebay_proxy"}
    assert all(name.startswith("forebay_proxy.wire") for name in ours), ours


@pytest.mark.parametrize("path", [*WIRE, *LOADER], ids=lambda path: str(path.relative_to(ROOT)))
def test_training_side_parses_on_python_39(path: Path) -> None:
    """What runs inside training keeps to the grammar of Python 3.9."""
    ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
