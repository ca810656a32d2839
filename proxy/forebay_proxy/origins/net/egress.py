"""How this sidecar meets the outside: through which proxy, with which certificate authorities, and by which mark it recognises itself.

Authorities: SSL_CERT_FILE and SSL_CERT_DIR for every origin, AWS_CA_BUNDLE for s3. Verification is never off. As OpenSSL reads them,
SSL_CERT_FILE stands in for the system's file and SSL_CERT_DIR for its directory (several are separated by colons); AWS_CA_BUNDLE, a file
or a directory, stands in for everything, as in the AWS SDK, which reads it for its own calls too. OpenSSL itself passes over a bundle it
cannot read without a word, and every origin would fail later: here it ends the start.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.request_loop import LoopGuard
from forebay_proxy.origins.net.proxies import Proxies

__all__ = ["Egress", "Trust"]


Authorities = ssl.SSLContext | Literal[True]  # as the HTTP client's ``ssl=``: True is its own context, which holds the system's

_STEP = "name a file of certificates in PEM form, or unset the variable"


@dataclass(frozen=True, slots=True)
class Trust:
    """What TLS peers are checked against.

    ``everywhere`` counts for all origins but those whose bytes an SDK signs for; ``sdk`` for these. Contexts are made once: loading a
    bundle takes 20 ms and 3 MB.
    """

    everywhere: Authorities = True
    sdk: Authorities = True

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Trust:
        """Raises ``ConfigError`` naming the variable that leads to nothing usable."""
        file, directory, bundle = (environ.get(name, "") for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE"))
        for name, value in (("SSL_CERT_DIR", each) for each in directory.split(os.pathsep) if each):
            if not Path(value).is_dir():
                raise ConfigError(f"{name} names {value}, which is no directory", next_step=_STEP)
        everywhere: Authorities = True
        if file or directory:
            usual = ssl.get_default_verify_paths()
            everywhere = _context("SSL_CERT_FILE", file, usual.openssl_cafile, directory or usual.openssl_capath)
        sdk: Authorities = everywhere
        if bundle:
            is_directory = Path(bundle).is_dir()
            sdk = _context("AWS_CA_BUNDLE", "" if is_directory else bundle, "", bundle if is_directory else "")
        return cls(everywhere, sdk)


def _context(name: str, file: str, usual_file: str, directory: str) -> ssl.SSLContext:
    """``file`` was asked for by ``name``; ``usual_file`` is taken if it is there."""
    file = _readable(name, file) if file else usual_file if Path(usual_file).is_file() else ""
    try:
        exists = any(each and Path(each).is_dir() for each in directory.split(os.pathsep))
        context = ssl.create_default_context(cafile=file or None, capath=directory if exists else None)
    except ssl.SSLError as error:
        raise ConfigError(f"{name} names {file}, which holds no certificate in PEM form", next_step=_STEP) from error
    context.set_alpn_protocols(("http/1.1",))  # as the client's own context has it
    return context


def _readable(name: str, file: str) -> str:
    try:
        with open(file, "rb"):
            return file
    except OSError as error:
        raise ConfigError(f"{name} names {file}: {error.strerror}", next_step=_STEP) from error


@dataclass(frozen=True, slots=True)
class Egress:
    """The plain one: no proxy, the system's authorities, no mark."""

    proxies: Proxies | None = None  # None: the operator named none
    trust: Trust = field(default_factory=Trust)
    loop_guard: LoopGuard = field(default_factory=LoopGuard)

    @classmethod
    def of(cls, environ: Mapping[str, str], instance: str) -> Egress:
        """As the operator's environment has it. Raises ``ConfigError``."""
        return cls(Proxies.of(environ) or None, Trust.of(environ), LoopGuard(instance))
