"""The version of this distribution, in one place."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]

try:
    VERSION = version("forebay")
except PackageNotFoundError:  # run from a source tree that was not installed
    VERSION = "0+unknown"
