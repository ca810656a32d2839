"""``with fb.sidecar(cache_size="50GB"):`` a sidecar for a notebook or a script, joined or started, and kept while it is needed.

A sidecar that was started here lives while a process holds it open, and a minute more, so that the next cell finds it. All code that reads
shards inside the ``with``, child processes too, finds the sidecar by ``FOREBAY_URL``.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional

from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.base.notices import notice_once
from forebay_loader.session.status import Status, status

__all__ = ["serve_arguments", "sidecar"]

_VARIABLE = "FOREBAY_URL"


class _Named:
    """``FOREBAY_URL`` as nested ``with`` blocks set it: the addresses of the entered sidecars, in order, above the value before them."""

    def __init__(self) -> None:
        self._entered: list[Any] = []
        self._before: Optional[str] = None

    def enter(self, who: Any) -> None:
        if not self._entered:
            self._before = os.environ.get(_VARIABLE)
        self._entered.append(who)
        os.environ[_VARIABLE] = who.url

    def environment_before(self) -> Optional[dict[str, str]]:
        """The environment without the address that ``enter`` set; None where ``FOREBAY_URL`` holds another address."""
        if not self._entered or os.environ.get(_VARIABLE) != self._entered[-1].url:
            return None
        others = {name: value for name, value in os.environ.items() if name != _VARIABLE}
        return others if self._before is None else {**others, _VARIABLE: self._before}

    def leave(self, who: Any) -> None:
        """Set ``FOREBAY_URL`` to the last sidecar that is still entered, in whatever order they leave; after the last one to the value
        before.
        """
        if who not in self._entered:
            return
        self._entered.remove(who)
        if self._entered:
            os.environ[_VARIABLE] = self._entered[-1].url
        elif self._before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._before


_NAMED = _Named()


class sidecar:  # noqa: N801  # people write it as they write `open`
    """The node's sidecar for the length of a ``with``, or from ``start()`` to ``close()``.

    It joins the sidecar that ``FOREBAY_URL`` names, else a running one of this user with the same credentials. Otherwise it starts a
    sidecar, which ends a minute after its last user. Inside, ``FOREBAY_URL`` leads child processes to the sidecar.

    Both arguments are for a sidecar that is started by this call. A running one keeps its settings, and a notice names the differences.
    Only ``allow_origin`` is added to those of a running one, unless ``FOREBAY_URL`` named it.

    Args:
        cache_size: The most bytes that the cache may take, such as ``"50GB"``.
        **options: Options of ``forebay serve`` by the names of their keys (docs/settings.md), such as ``cache_dir="/nvme"`` or
            ``prefetch=False``. A list for those that may be repeated. ``token`` is refused: others can read a command line.

    Raises:
        fb.ProxyUnreachable: On entering: the sidecar would not start. The text has its last words.
        TypeError: On entering: ``token`` was given.

    Examples:
        >>> with fb.sidecar(cache_size="50GB", allow_origin=["http://127.0.0.1:9000"]) as sidecar:
        ...     print(sidecar.how)
        named
    """

    def __init__(self, *, cache_size: Optional[str] = None, **options: Any) -> None:
        self._options = {**({} if cache_size is None else {"cache_size": cache_size}), **options}
        self._held: Any = None
        self.url = ""

    def __repr__(self) -> str:
        return f"<fb.sidecar {self.url}, {self.how}>" if self._held is not None else "<fb.sidecar, not entered>"

    @property
    def how(self) -> str:
        """``named``, ``joined`` or ``started``; "" before it was entered."""
        return "" if self._held is None else str(self._held.how)

    def start(self) -> sidecar:
        """As entering a ``with`` does, for a notebook whose sidecar outlasts the cell. Again: nothing."""
        if self._held is not None:
            return self
        # Here, not above: it brings subprocess, which a training process that starts no sidecar need not load.
        from forebay_proxy.wire.protocol.launch import LaunchError, join_or_start  # noqa: PLC0415

        arguments = serve_arguments(self._options)
        try:
            try:
                self._held = join_or_start(arguments)
            except LaunchError:
                before = _NAMED.environment_before()
                if before is None:
                    raise
                self._held = join_or_start(arguments, before)  # the one of an earlier cell has died: nobody else named that address
        except LaunchError as error:
            raise ProxyUnreachable(f"no sidecar: {error}") from error
        self.url = self._held.endpoint
        _NAMED.enter(self)
        self._tell()
        return self

    def status(self) -> Status:
        """``fb.status()`` of this very sidecar."""
        return status({**os.environ, _VARIABLE: self.url}) if self.url else status()

    def close(self) -> None:
        """Let go of it; the environment is what it was. Safe to repeat."""
        if self._held is None:
            return
        _NAMED.leave(self)
        self._held.close()
        self._held = None

    def __enter__(self) -> sidecar:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self) -> None:
        if self.how == "started":
            for text in self._held.notices:
                notice_once(f"sidecar-{text}", str(text))
        elif self._held.without_effect is not None:
            if self._held.without_effect:
                text = "; ".join(self._held.without_effect)
                notice_once(f"sidecar-{self.url}-{text}", f"the sidecar at {self.url} runs with other settings, and they count: {text}")
        elif self._options:
            names = ", ".join(self._options)
            notice_once(
                f"sidecar-options-{self.url}-{names}", f"{names}: without effect, the sidecar at {self.url} runs already; {self.status()}"
            )


def serve_arguments(options: "dict[str, Any]") -> list[str]:
    """Options of ``forebay serve`` as a command line: ``{"cache_size": "1GB", "prefetch": False}`` -> ``--cache-size 1GB --no-prefetch``.

    A list is a flag for each item, None is not given. ``token`` is refused: a command line is public.
    """
    arguments: list[str] = []
    for name, value in options.items():
        if name == "token":
            raise TypeError("fb.sidecar(): a command line is public; set FOREBAY_TOKEN instead of token=…")
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(flag if value else "--no-" + flag[2:])
        elif value is not None:
            for item in _items(value):
                arguments += [flag, str(item)]
    return arguments


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
