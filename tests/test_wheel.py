"""The wheel: built once from these sources, without a network, it holds every file that the program opens."""

from __future__ import annotations

import ast
import configparser
import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = (("proxy", "forebay_proxy"), ("loader", "forebay_loader"), ("stage", "forebay_stage"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """What ``pip wheel .`` builds."""
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed here; scripts/test installs it")
    (built,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    with zipfile.ZipFile(built) as opened:
        yield opened


@pytest.fixture(scope="module")
def packed(wheel: zipfile.ZipFile) -> set[str]:
    """Its files but the metadata."""
    return {name for name in wheel.namelist() if not name.startswith(of_metadata(""))}


def of_metadata(name: str) -> str:
    return f"forebay-{PROJECT['version']}.dist-info/{name}"


def files_below(folder: Path) -> set[str]:
    """All but what Python has compiled."""
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_it_holds_every_file_of_the_packages(packed: set[str]) -> None:
    """Whatever a file ends with, and git-ignored or not: what is opened here is there. And no file of another folder."""
    sources = {f"{name}/{file}" for folder, name in PACKAGES for file in files_below(ROOT / folder / name)}
    assert {"forebay_proxy/page/status.js", "forebay_loader/py.typed", "forebay_loader/takeover/path/sitecustomize.py"} <= sources
    assert packed == sources


def test_it_holds_no_test_and_no_cache(packed: set[str]) -> None:
    """Nor anything else that only a checkout has."""
    assert [name for name in packed if re.search(r"(^|/)(tests?|__pycache__|\.[^/]*|test_[^/]*|conftest\.py)(/|$)|\.pyc$", name)] == []


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    """Name, version, Pythons, extras and licence are those of pyproject.toml."""
    said = email.message_from_bytes(wheel.read(of_metadata("METADATA")))
    assert (said["Name"], said["Version"]) == ("forebay", PROJECT["version"])
    assert (said["Requires-Python"], said["License-Expression"]) == (PROJECT["requires-python"], PROJECT["license"])
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert wheel.read(of_metadata("licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()


def test_its_entry_points(wheel: zipfile.ZipFile) -> None:
    """The command and the fsspec file system, each in a file of the wheel that defines it."""
    found = configparser.ConfigParser(delimiters="=")
    found.read_string(wheel.read(of_metadata("entry_points.txt")).decode())
    assert {section: set(found[section]) for section in found.sections()} == {"console_scripts": {"forebay"}, "fsspec.specs": {"forebay"}}
    for target in (target for section in found.sections() for target in found[section].values()):
        module, _, name = target.partition(":")
        tree = ast.parse(wheel.read(f"{module.replace('.', '/')}.py"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}, target


def test_the_program_runs_from_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Version, page, shards, status, takeover and a clean end, with no file of the sources: what scripts/release does on each Python."""
    wheel.extractall(tmp_path / "unpacked")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path / 'unpacked'}:{ROOT / 'examples'}"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of its programs would be compiled anew
    command = [sys.executable, "-m", "demo.bytes_alone", "--below", str(tmp_path / "unpacked"), "--version", PROJECT["version"]]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_version_is_stated_once() -> None:
    """In pyproject.toml; the program asks its metadata."""
    version = re.escape(PROJECT["version"])
    stated = re.compile(rf"""["']{version}["']|(?i:forebay)\W{{0,6}}v?{version}\b|__version__\s*=""")
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix != ".pyc"),
    ]
    sources = [path for folder, name in PACKAGES for path in (ROOT / folder / name).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in [*pages, *sources] if stated.search(path.read_text(encoding="utf-8"))] == []


def test_kubernetes_gets_the_image_of_this_version() -> None:
    """A kustomization cannot ask for it; so it is set with the version, and compared here."""
    files = sorted((ROOT / "deploy").rglob("kustomization.yaml"))
    tags = {tag for file in files for tag in re.findall(r"^ *newTag: *(\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)}
    assert tags == {PROJECT["version"]}
