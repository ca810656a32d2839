"""A certificate authority of one test, and https servers it vouches for."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

__all__ = ["Authority"]


class Authority:
    """``bundle`` is its certificate as a PEM file, for SSL_CERT_FILE and AWS_CA_BUNDLE."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self.bundle = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(self.bundle)

    def server(self, *hosts: str) -> ssl.SSLContext:
        """What a server called ``hosts`` (names or addresses) listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*hosts).configure_cert(context)
        return context
