"""``forebay launch``, for programs: join or start this node's sidecar, say where it is, hold it until standard input ends.

Not in the help: ``fb.sidecar()`` runs it from training interpreters that cannot read the sidecar's settings (see wire/launch.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from forebay_proxy.errors import ForebayError
from forebay_proxy.verbs.join import Wish, join
from forebay_proxy.verbs.options import config_option, settings_options
from forebay_proxy.verbs.output import say_json
from forebay_proxy.verbs.seams import Seams

__all__ = ["launch"]


@click.command(hidden=True)
@settings_options
@config_option
@click.pass_obj
def launch(seams: Seams, /, config: Path | None, **flags: Any) -> int:
    """Join or start this node's sidecar, say where in one line of JSON, and hold it until standard input ends."""
    with join(Wish(None, config, flags), os.environ, seams.program) as joined:
        say_json({
            "event": "joined", "how": joined.how, "url": joined.url, "log": None if joined.log is None else str(joined.log),
            "notices": _notices(joined) if joined.how == "started" else [],
        })  # fmt: skip
        sys.stdin.buffer.read()
    return 0


def _notices(joined: Any) -> list[str]:
    """What it decided by itself: nobody reads its log for that."""
    try:
        return [str(text) for text in joined.sidecar.status().get("notices", ())]
    except ForebayError:
        return []
