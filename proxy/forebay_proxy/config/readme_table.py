"""docs/settings.md's table, and its forebay.toml by example, made from the settings; a test compares them.

python -m forebay_proxy.config.readme_table           the table
python -m forebay_proxy.config.readme_table --toml    a forebay.toml with every key, commented out
"""

from __future__ import annotations

import json
import sys
from typing import Any

from forebay_proxy.config.fields import env_name, flag_name
from forebay_proxy.config.settings import Settings
from forebay_proxy.config.settings_text import default_text, has_flag

__all__ = ["example", "table"]

# What a person might write where the default is none, or says little.
_EXAMPLES: dict[str, Any] = {
    "port": 7070,
    "socket": "/run/user/1000/forebay.sock",
    "cache_dir": "/nvme/forebay",
    "cache_size": "200GB",
    "allow_origin": ["http://127.0.0.1:9000", "s3://bucket"],
    "allow_uid": [1001],
    "allow_profile": ["research"],
    "gs_endpoint": "https://storage-example.p.googleapis.com",
    "pass_header": ["Accept-Language"],
    "secret_param": ["ticket"],
    "file_root": ["/nas"],
    "token": "what-clients-must-send",
    "revalidate": "1h",
    "set": ["s3://bucket/train-{000000..000999}.tar"],
    "idle_exit_s": 600,
    "access_log": "/var/log/forebay/access.jsonl",
}


def table() -> str:
    """One row a setting: flag, variable, key, default, meaning."""
    lines = ["| Flag | Variable | Key in `forebay.toml` | Default | Meaning |", "|---|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        flag = f"`{flag_name(name)}`" if has_flag(name) else "none"
        cells = (flag, f"`{env_name(name)}`", f"`{name}`", default_text(name), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def example() -> str:
    """A forebay.toml with every key, each with its meaning above it and commented out."""
    parts = []
    for name, field in Settings.model_fields.items():
        value = _EXAMPLES.get(name, field.default)
        parts.append(f"# {field.description} Default: {default_text(name)}.\n# {name} = {_toml(value)}\n")
    return "\n".join(parts)


def _toml(value: Any) -> str:
    """A value as TOML writes it, which for these kinds is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    print(example() if sys.argv[1:] == ["--toml"] else table(), end="")  # noqa: T201 -- that is the output
