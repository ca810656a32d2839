"""docs/settings.md is made from the code, and what it says to write is taken."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forebay_proxy.config.settings import Settings, default_text, env_name, flag_name, has_flag, load
from forebay_proxy.config.settings_file import find_file

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def table() -> str:
    """One row a setting: flag, variable, key, default, meaning."""
    lines = ["| Flag | Variable | Key in `forebay.toml` | Default | Meaning |", "|---|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        flag = f"`{flag_name(name)}`" if has_flag(name) else "none"
        cells = (flag, f"`{env_name(name)}`", f"`{name}`", default_text(name), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_page_is_current() -> None:
    """Print it anew with ``python tests/test_docs_settings.py`` when this fails."""
    assert table() in PAGE


def test_the_short_example_is_taken(tmp_path: Path) -> None:
    """The first file on the page, as it stands."""
    block = re.search(r"```toml\n(# forebay.toml\n.*?)```", PAGE, re.DOTALL)
    assert block
    file = tmp_path / "forebay.toml"
    file.write_text(block[1])
    settings = load({}, dict(os.environ) | {"FOREBAY_CONFIG": str(file)}, find_file(file, {}))
    assert str(settings.cache_dir) == "/nvme/forebay"


if __name__ == "__main__":
    print(table(), end="")
