"""``forebay serve``: the sidecar in the foreground."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay_proxy.cli.options import Seams, config_option, json_option, load_settings, settings_options
from forebay_proxy.cli.output import notice, say, say_json, silence_stdout
from forebay_proxy.core.logs import keep_short
from forebay_proxy.core.quantities import format_size
from forebay_proxy.node.runfile import RunDirectory

if TYPE_CHECKING:
    from forebay_proxy.app.status import ServiceInfo

__all__ = ["serve"]


@click.command()
@settings_options
@config_option
@json_option
@click.option("--start-lock", type=int, hidden=True, help="Descriptor of the lock of whoever starts us; closed once we are ready.")
@click.pass_obj
def serve(seams: Seams, /, config: Path | None, as_json: bool, start_lock: int | None, **flags: Any) -> int:
    """Run the sidecar in the foreground until a signal ends it.

    \b
    Examples:
      forebay serve
      forebay serve --cache-dir /nvme/forebay --cache-size 200GB
      forebay serve --strict-origins --allow-origin s3://my-bucket
      forebay serve --access-log /var/tmp/forebay.log
      forebay plan --replay /var/tmp/forebay.log --cache-size 500GB

    Every flag is also a FOREBAY_* variable and a key of forebay.toml; 'forebay config show' says which one counts.
    With --json one line of JSON on stdout says that the sidecar is ready and where.

    --access-log FILE gets a line of JSON for each answer about a shard: when, who, what, how many bytes from where, how long; no secrets.
    Rotate it by moving it away (logrotate without a signal, or mv): the next line begins a new file. What its disk cannot take is dropped,
    counted (forebay_access_log_lines_total) and said once.

    SIGTERM, SIGINT and SIGHUP end it: nothing new begins, running answers may end within --drain-timeout-s; a second signal cuts them.
    Exit codes: 0 ended as asked, 2 it cannot begin, 3 a fault in Forebay itself, 4 ended by force because something hung.
    """
    settings = load_settings(flags, config)
    for text in settings.notices:
        notice(text)

    def ready(info: ServiceInfo) -> None:
        """Say once where we serve. Raises OSError when nobody hears it, as in ``forebay serve | head -1``."""
        try:
            if as_json:
                say_json({
                    "event": "ready", "url": info.url, "socket": None if info.socket is None else str(info.socket), "pid": os.getpid(),
                    "instance": info.instance, "cache_dir": str(info.cache_dir), "capacity_bytes": info.capacity_bytes,
                })  # fmt: skip
            else:
                _announce(info)
            for text in info.notices:
                if text not in settings.notices:
                    notice(text)
        except OSError:
            silence_stdout()
            raise
        finally:
            if start_lock is not None:
                keep_short(sys.stderr.fileno())  # the starter's log file; a person's own is for that person to rotate
                with suppress(OSError):
                    os.close(start_lock)  # others may join from here on, also when our starter was killed meanwhile

    return seams.serve(settings, ready)


def _announce(info: ServiceInfo) -> None:
    say(f"listening on  {info.url}" + (f" and {info.socket}" if info.socket else ""))
    say(f"cache         {info.cache_dir}, at most {format_size(info.capacity_bytes)}")
    # Where verbs without an address lead those who have our credentials: to us, unless a sidecar of theirs runs already.
    directory = RunDirectory.of(os.environ)
    fingerprint = directory.fingerprint(os.environ)
    first = next((record.url for record in directory.live() if record.fingerprint == fingerprint), info.url)
    named = "" if first == info.url else f"--url {info.url} "
    say(f'next          forebay run {named}-- <your command>, or: eval "$(forebay env{" " + named.rstrip() if named else ""})"')
    if named:
        say(f"              without --url or FOREBAY_URL they find {first}, which runs already")
