"""``forebay doctor --report``: one file to paste into a bug report. Nothing in it proves who anybody is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forebay_proxy.cli.doctor.set_rules import RuleFinding
from forebay_proxy.config.settings import Settings, env_name
from forebay_proxy.core.logs import scrubbed
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["report"]

_PACKAGES = ("aiohttp", "boto3", "diskcache", "webdataset", "torch", "torchdata", "lightning")
_SETTINGS = {env_name(name) for name in Settings.model_fields} - {"FOREBAY_TOKEN"}
_OPEN = re.compile(r"WDS_(?:VERBOSE_)?CACHE(?:_SIZE)?|WDS_SECURE|WDS_SEED|(?i:no_proxy)")  # shown with values, as settings are
_NAMED = re.compile(r"AWS_\w+|HF_\w+|GOOGLE_\w+|(?i:\w+_proxy)|SSL_CERT_\w+|SLURM_\w+|RANK|WORLD_SIZE|FOREBAY_\w+|WDS_\w+")
_LOG_BYTES = 64 << 10


def report(findings: Sequence[RuleFinding], status: Mapping[str, Any] | None, environ: Mapping[str, str]) -> str:
    """As JSON. ``status``: the sidecar's, None without one."""
    versions = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    said = {
        "forebay": VERSION, "python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(),
        "packages": versions,
        "variables": {name: scrubbed(value) if name in _SETTINGS or _OPEN.fullmatch(name) else "(set)"
                      for name, value in sorted(environ.items()) if _OPEN.fullmatch(name) or _NAMED.fullmatch(name)},
        "findings": [asdict(one) for one in findings],
        "status": status,
        "log": _log(str((status or {}).get("log") or "")),
    }  # fmt: skip
    return json.dumps(said, indent=1, default=str) + "\n"


def _log(path: str) -> list[str]:
    """Its last lines; it holds no secret, as all lines were scrubbed when they were written."""
    if not path:
        return []
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return [scrubbed(line) for line in file.read(_LOG_BYTES).decode("utf-8", "replace").splitlines()[1:]]
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
