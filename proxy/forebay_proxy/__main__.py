"""The command ``forebay``, and ``python -m forebay_proxy``: loads the verbs, which takes half a second that a Ctrl-C may fall into."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Entry point of the installed command."""
    try:
        from forebay_proxy.cli.main import main as run  # noqa: PLC0415  # inside: a Ctrl-C meanwhile is no fault to be shown with frames
    except KeyboardInterrupt:
        sys.stderr.flush()
        os._exit(128 + signal.SIGINT)  # at once: libraries that are half loaded have nothing to end
    run()


if __name__ == "__main__":
    main()
