"""Promises about the sources as text: what is never imported, never called, always there."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.pool import APART, HEAVY

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for root in ("proxy", "loader", "stage") for path in (ROOT / root).rglob("*.py"))
LONGEST_NAME = 1500  # of a test: eight values of which a hundred characters are shown

# Modules that unpickle or run code from data. multiprocessing is not among them: torch needs it, our sources do not.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "commands", "pty"}
FORBIDDEN_CALLS = {
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "subprocess.getoutput": "runs a shell",
    "subprocess.getstatusoutput": "runs a shell",
    "asyncio.create_subprocess_shell": "runs a shell",
    "asyncio.to_thread": "is one shared pool: a warm read would wait behind a throttled write",
    "eval": "runs code from data",
    "exec": "runs code from data",
}


def name_of(node: ast.expr) -> str:
    """``a.b.c`` of a call target; "" for anything that is not a plain dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := name_of(node.value)):
        return f"{inner}.{node.attr}"
    return ""


@dataclass(frozen=True)
class Nodes:
    """What the tests below look at in all sources, each with its file, by one walk through the trees."""

    imported: list[tuple[Path, str]] = field(default_factory=list)
    calls: list[tuple[Path, ast.Call]] = field(default_factory=list)
    classes: list[tuple[Path, ast.ClassDef]] = field(default_factory=list)


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    found = Nodes()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call):
                found.calls.append((path, node))
            elif isinstance(node, ast.ClassDef):
                found.classes.append((path, node))
            elif isinstance(node, ast.Import):
                found.imported.extend((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.imported.append((path, node.module))
    return found


def test_there_are_sources() -> None:
    """The source roots are where the other tests look for them."""
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {"proxy", "loader", "stage"}


def test_nothing_unpickles(nodes: Nodes) -> None:
    """No source imports pickle or a relative of it."""
    found = {f"{path.name}: {name}" for path, name in nodes.imported if name.split(".")[0] in FORBIDDEN_MODULES}
    assert not found


@pytest.mark.parametrize("forbidden", FORBIDDEN_CALLS)
def test_no_forbidden_call(nodes: Nodes, forbidden: str) -> None:
    """No source calls what runs a shell, runs code from data or queues in asyncio's shared pool."""
    found = [f"{path.name}:{call.lineno}" for path, call in nodes.calls if name_of(call.func) == forbidden]
    assert not found, f"{forbidden} {FORBIDDEN_CALLS[forbidden]}"


PARTICIPLES = {"framing", "landing", "opening", "recording"}  # nouns of the field: HTTP framing, the landing of a body


def test_what_a_log_shows_of_an_object_names_its_class(nodes: Nodes) -> None:
    """``<Name …>``: who reads it looks for that name."""
    wrong = []
    for path, node in nodes.classes:
        texts = [ast.unparse(method) for method in node.body if isinstance(method, ast.FunctionDef) and method.name == "__repr__"]
        names = [name for text in texts for name in re.findall(r"<([A-Z]\w+)", text)]
        wrong += [f"{path.name}: {node.name} says {name}" for name in names if name != node.name]
    assert wrong == []


def test_modules_are_named_by_nouns() -> None:
    """What a module is, not what it is doing."""
    assert {path.stem for path in SOURCES if re.search(r"(ing|ed)$", path.stem)} - PARTICIPLES == set()


def test_no_shell_argument(nodes: Nodes) -> None:
    """No call passes ``shell=`` anything but False."""
    passed = [
        f"{path.name}:{call.lineno}"
        for path, call in nodes.calls
        for word in call.keywords
        if word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
    ]
    assert not passed


def test_default_executor_is_never_used(nodes: Nodes) -> None:
    """``run_in_executor(None, …)`` is asyncio.to_thread by another name."""
    found = [
        f"{path.name}:{call.lineno}"
        for path, call in nodes.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "run_in_executor"
        if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value is None
    ]
    assert not found


@pytest.mark.parametrize("package", ["proxy/forebay_proxy", "loader/forebay_loader", "stage/forebay_stage"])
def test_packages_are_typed(package: str) -> None:
    """The packages carry py.typed, so that type checkers read our hints."""
    assert (ROOT / package / "py.typed").is_file()


def test_sidecar_installs_without_torch() -> None:
    """The base install names neither torch nor webdataset; the extra ``loader`` does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[^a-z0-9_-]", line.lower())[0] for line in project["dependencies"]}
    assert not base & {"torch", "webdataset", "numpy"}
    assert {line.split(">")[0] for line in project["optional-dependencies"]["loader"]} == {"torch", "webdataset"}


def test_licence_is_whole() -> None:
    """The licence the metadata names is the one in the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_changelog_names_the_version_or_unreleased() -> None:
    """The first section of the changelog is what people who upgrade look for."""
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"


@pytest.mark.parametrize("script", ["scripts/test", "scripts/demo", "scripts/docs", "scripts/release", ".ci/run"])
def test_scripts_can_be_run(script: str) -> None:
    """Scripts are executable and stop at the first error."""
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert "set -euo pipefail" in path.read_text()


def test_scripts_name_no_index_and_no_home() -> None:
    """Scripts use the package index and the directories the machine is configured with."""
    text = "".join(path.read_text() for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"] if path.is_file())
    assert not re.findall(r"https?://|--index-url|--extra-index|--find-links|/home/\w|/root/", text)


# What runs webdataset's code: a test file that names one of these depends on webdataset's version, unless it says why not.
OF_WEBDATASET = re.compile(
    r"import webdataset|from webdataset|(?:importorskip|import_module)\(\"(?:webdataset|forebay_loader\.(?:dataset|loader|stages|stock))"
    r"|fb\.(?:WebDataset|WebLoader|tarfile_to_samples|ahead|enable)\("
)
# One version tells enough. The votes of ranks are Forebay's own, and with both versions one is held in e2e/test_equal_steps.py. The others
# are about a sidecar or a file that ends, hangs or keeps one waiting while somebody reads.
WITH_ONE = {
    "test_equal_steps.py", "test_clean_end.py", "test_failing_file.py", "test_hung_sidecar.py",
    "test_waiting_told.py", "test_docstrings.py",
}  # fmt: skip


def test_what_depends_on_webdataset_is_run_with_both() -> None:
    """Whoever uses it in a test marks the file, or the tests."""
    unmarked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if OF_WEBDATASET.search(path.read_text("utf-8")) and not re.search(r"mark\.(webdataset|once)\b", path.read_text("utf-8"))
        if path.name not in WITH_ONE and path != Path(__file__)
    }
    assert not unmarked


@pytest.mark.parametrize("names", [HEAVY, APART], ids=["heavy", "apart"])
def test_files_that_the_pool_names_are_there(names: frozenset[str]) -> None:
    """One that was renamed would be run beside another."""
    assert all((Path(__file__).parent / name).exists() for name in names)


def test_names_of_tests_are_short(request: pytest.FixtureRequest) -> None:
    """Each worker of a pool sends the names of all tests: a value of a megabyte in one costs seconds."""
    assert [item.nodeid[:100] for item in request.session.items if len(item.nodeid) > LONGEST_NAME] == []
