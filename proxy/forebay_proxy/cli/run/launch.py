"""``forebay launch``, for programs: join or start this node's sidecar, say where it is, hold it until standard input ends.

Not in the help: ``fb.sidecar()`` runs it from training interpreters that cannot read the sidecar's settings (see wire/launch.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.client import SidecarRefused
from forebay_proxy.cli.options import config_option, load_settings, settings_options
from forebay_proxy.cli.output import error_line, say_json
from forebay_proxy.cli.run.differences import differences, unknown_origins
from forebay_proxy.cli.run.join import Joined, JoinRequest, join
from forebay_proxy.cli.seams import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ForebayError

__all__ = ["launch"]


@click.command(hidden=True)
@settings_options
@config_option
@click.pass_obj
def launch(seams: Seams, /, config: Path | None, **flags: Any) -> int:
    """Join or start this node's sidecar, say where in one line of JSON, and hold it until standard input ends."""
    settings = load_settings(flags, config)
    with join(JoinRequest(None, config, flags), os.environ, seams.program) as joined:
        started, status = joined.how == "started", _status(joined)
        say_json({
            "event": "joined", "how": joined.how, "url": joined.url, "log": None if joined.log is None else str(joined.log),
            "notices": [str(text) for text in (*status.get("chosen", ()), *status.get("notices", ()))] if started else [],
            "without_effect": None if started else _without_effect(joined, settings, status.get("settings")),
        })  # fmt: skip
        sys.stdin.buffer.read()
    return 0


def _status(joined: Joined) -> Mapping[str, Any]:
    """Decisions and notices of the sidecar, since people do not read a log for them; and its settings."""
    try:
        return joined.sidecar.status()
    except ForebayError:
        return {}


def _without_effect(joined: Joined, settings: Settings, running: Mapping[str, Any] | None) -> list[str] | None:
    """Which of our settings a running sidecar does not have, once it was handed ``--allow-origin``; None: an older one does not tell."""
    if not running:
        return None
    found = differences(settings, running)
    if unknown := unknown_origins(settings, running):
        try:
            joined.sidecar.allow(unknown)
        except SidecarRefused as refused:
            found.append(f"--allow-origin {', '.join(unknown)}: {error_line(refused)}")
    return found
