"""Which sidecar a verb talks to: the one that was named, else the one of this node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forebay_proxy.cli.client import SidecarClient, SidecarHung, SidecarUnreachable
from forebay_proxy.config.settings import load
from forebay_proxy.config.settings_file import find_file
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.node.runfile import RunDirectory

__all__ = ["locate", "named_address", "token_of"]


def named_address(url: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """(address, who named it) by ``--url`` or ``FOREBAY_URL``; ("", "") when nobody did."""
    if url:
        return url, "--url"
    return (environ["FOREBAY_URL"], "FOREBAY_URL") if environ.get("FOREBAY_URL") else ("", "")


def token_of(environ: Mapping[str, str]) -> str:
    """What to send as Forebay-Token: the variable's, else the file's."""
    if environ.get("FOREBAY_TOKEN"):
        return environ["FOREBAY_TOKEN"]
    try:
        token = load({}, environ, find_file(None, environ)).token
    except ConfigError:  # other settings may be wrong; that is for the verbs that use them to say
        return ""
    return token.get_secret_value() if token else ""


def locate(url: str | None, environ: Mapping[str, str]) -> SidecarClient:
    """By ``--url``, ``FOREBAY_URL``, ``FOREBAY_SOCKET``, else by the run files, one with this environment's credentials first.

    The sidecar is known to be ready. Raises ``ConfigError`` when there is none, ``SidecarUnreachable`` when it does not answer.
    """
    sidecar = SidecarClient(_address(url, environ), token=token_of(environ))
    try:
        sidecar.ready()
    except SidecarUnreachable as error:
        if not url and environ.get("FOREBAY_URL") and not isinstance(error, SidecarHung):
            error.next_step = "FOREBAY_URL names it: unset that, or start one there with 'forebay serve'"
        raise
    return sidecar


def _address(url: str | None, environ: Mapping[str, str]) -> str:
    named, _ = named_address(url, environ)
    if named:
        return named
    socket = environ.get("FOREBAY_SOCKET", "")
    if socket.startswith("/") and Path(socket).is_socket():
        return f"unix:{socket}"
    directory = RunDirectory.of(environ)
    if not (live := directory.live()):
        raise ConfigError("no sidecar runs on this node", next_step="start one with 'forebay serve', or use 'forebay run -- <command>'")
    fingerprint = directory.fingerprint(environ)
    return next((record for record in live if record.fingerprint == fingerprint), live[0]).url
