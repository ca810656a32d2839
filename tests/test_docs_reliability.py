"""docs/reliability.md says what the code and the stored results say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from forebay_proxy.config.settings import Settings, flag_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reliability", ROOT / "benchmarks" / "reliability.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reliability"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    """Figures from the results, statuses, limits and exit codes from the code."""
    assert script.check() == 0, "run: python benchmarks/reliability.py"


def test_every_limit_holds(script: ModuleType) -> None:
    """No table with a broken promise in it is committed."""
    assert script.holds(script.stored()["results"])


def test_fresh_results_replace_the_old_of_their_name(script: ModuleType) -> None:
    """The others stay, in the order of the page."""
    old = {"results": [{"name": "soak", "figures": [], "command": "old"}, {"name": "faults", "figures": [], "command": "old"}]}
    merged = script.merged(old, [{"name": "soak", "figures": [], "command": "new"}])
    assert [(result["name"], result["command"]) for result in merged["results"]] == [("faults", "old"), ("soak", "new")]


def test_flags_that_are_named_exist() -> None:
    """Every --flag of the prose is a setting."""
    named = set(re.findall(r"`(--[a-z][a-z-]+)", PAGE.read_text("utf-8")))
    assert named <= {flag_name(name) for name in Settings.model_fields} | {"--required"}


def test_files_that_are_named_exist() -> None:
    """Scripts of the commands, too."""
    for path in set(re.findall(r"(?:benchmarks|tests|docs)/[\w/.]+\.\w+", PAGE.read_text("utf-8"))):
        assert (ROOT / path).exists(), path
