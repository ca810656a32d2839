"""docs/settings.md is made from the code, and what it says to write is taken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forebay_proxy.config.readme_table import example, table
from forebay_proxy.config.settings import Settings, load
from forebay_proxy.config.settings_file import find_files

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    """Rebuild both with ``python -m forebay_proxy.config.readme_table [--toml]`` when this fails."""
    assert table() in PAGE
    assert f"```toml\n{example()}```" in PAGE


@pytest.mark.parametrize(("flags", "made"), [([], table), (["--toml"], example)])
def test_the_command_prints_it(flags: list[str], made: object) -> None:
    """What the page tells people to run works."""
    command = [sys.executable, "-m", "forebay_proxy.config.readme_table", *flags]
    done = subprocess.run(command, cwd=ROOT / "proxy", capture_output=True, text=True, check=True)
    assert callable(made)
    assert done.stdout == made()


def test_every_key_of_the_example_is_taken(tmp_path: Path) -> None:
    """Its comment marks taken off, it is a settings file without a mistake, and has every setting."""
    text = re.sub(r"^# (\w+ = )(?!null)", r"\1", example(), flags=re.MULTILINE)
    assert set(tomllib.loads(text)) == set(Settings.model_fields)
    file = tmp_path / "forebay.toml"
    file.write_text(text)
    file.chmod(0o600)
    settings = load({}, {}, find_files(file, {}, tmp_path, Settings.model_fields))
    assert {settings.source_of(name) for name in Settings.model_fields} == {"file"}


def test_the_short_example_is_taken(tmp_path: Path) -> None:
    """The first file on the page, as it stands."""
    block = re.search(r"```toml\n(# forebay.toml\n.*?)```", PAGE, re.DOTALL)
    assert block
    file = tmp_path / "forebay.toml"
    file.write_text(block[1])
    settings = load({}, dict(os.environ) | {"FOREBAY_CONFIG": str(file)}, find_files(file, {}, tmp_path, Settings.model_fields))
    assert str(settings.cache_dir) == "/nvme/forebay"
