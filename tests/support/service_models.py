"""botocore's descriptions of services, read once in a process: reading them is most of making a client, and tests make hundreds.

Importing this module is enough. Sessions of one process differ in credentials and settings, never in these files.
"""

from __future__ import annotations

from typing import Any

from botocore.loaders import Loader

_READ: dict[Any, Any] = {}
_began = Loader.__init__


def _begin_sharing(loader: Loader, *given: Any, **how: Any) -> None:
    _began(loader, *given, **how)
    loader._cache = _READ


Loader.__init__ = _begin_sharing
