"""The configuration table of the README, made from the settings; a test compares the two.

python -m forebay_proxy.settings_table
"""

from __future__ import annotations

from forebay_proxy.settings import Settings, default_text, env_name, flag_name, has_flag

__all__ = ["table"]


def table() -> str:
    """One row a setting: flag, variable, key, default, meaning."""
    lines = ["| Flag | Variable | Key in `forebay.toml` | Default | Meaning |", "|---|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        flag = f"`{flag_name(name)}`" if has_flag(name) else "none"
        cells = (flag, f"`{env_name(name)}`", f"`{name}`", default_text(name), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201 -- the table is the output
