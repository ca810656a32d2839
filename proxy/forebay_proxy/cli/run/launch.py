"""``forebay launch``, for programs: join or start this node's sidecar, say where it is, hold it until standard input ends.

Not in the help: ``fb.sidecar()`` runs it from training interpreters that cannot read the sidecar's settings (see wire/launch.py).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.options import config_option, load_settings, settings_options
from forebay_proxy.cli.output import say_json
from forebay_proxy.cli.run.join import JoinRequest, join, without_effect
from forebay_proxy.cli.seams import Seams
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
        started = joined.how == "started"
        status: dict[str, Any] = {}
        if started:
            with suppress(ForebayError):
                status = joined.sidecar.status()
        say_json({
            "event": "joined", "how": joined.how, "url": joined.url, "log": None if joined.log is None else str(joined.log),
            "notices": [str(text) for text in (*status.get("chosen", ()), *status.get("notices", ()))],  # people do not read a log for them
            "without_effect": None if started else without_effect(joined, settings),
        })  # fmt: skip
        sys.stdin.buffer.read()
    return 0
