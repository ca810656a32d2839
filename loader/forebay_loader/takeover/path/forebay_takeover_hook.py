"""Import hook for webdataset: replaces the openers of its modules right after each has run, before other code can import them by name.

This module runs at the start of every Python process, also of those that have nothing to do with training. So it imports only modules that
are already loaded, supports Python 3.9 to 3.14, and does nothing until webdataset is imported. Then the hook makes two packages of Forebay
importable, and nothing else of the environment where Forebay is installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

__all__ = ["Hook", "install", "next_sitecustomize", "replace_openers", "run_instead"]

HERE = os.path.dirname(os.path.abspath(__file__))
PATCHED = (
    "webdataset.gopen", "webdataset.tariterators", "webdataset.cache", "webdataset.shardlists", "webdataset.autodecode",
    "webdataset.handlers", "webdataset.filters", "webdataset.pipeline",
)  # fmt: skip
FSSPEC = "fsspec.registry"  # gets the protocol `forebay::`, also in environments without Forebay
OURS = ("forebay_loader", "forebay_proxy")
_LOADER = os.path.dirname(os.path.dirname(HERE))  # the folder of forebay_loader
_PASSED = {HERE}  # folders whose sitecustomize has run, so that none runs twice if one of them imports the next itself
_COMPLAINED: list[str] = []  # not empty: this process has reported that the takeover failed


class Hook:
    """A finder, first on ``sys.meta_path``: wraps the loaders of ``PATCHED``, and finds Forebay's own packages if no other finder does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name in PATCHED or name == FSSPEC:
            return _followed(self._elsewhere(name, path, target))
        if name in OURS:
            found = self._elsewhere(name, path, target)
            return found if found is not None and found.has_location else _own_package(name)
        return None

    def invalidate_caches(self) -> None:
        """Do nothing: there is no cache."""

    def _elsewhere(self, name: str, path: Any, target: Any) -> Optional[ModuleSpec]:
        """Ask the other finders, in their order."""
        for finder in sys.meta_path:
            find: Any = None if finder is self else getattr(finder, "find_spec", None)
            found: Optional[ModuleSpec] = find(name, path, target) if find is not None else None
            if found is not None:
                return found
        return None


class _Followed:
    """A module's own loader, wrapped: replaces the module's openers after it has run. Then the module has its own loader again."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        create = getattr(self._inner, "create_module", None)  # a loader need not have one
        made: Optional[ModuleType] = create(spec) if create is not None else None
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        replace_openers(module)


def install() -> None:
    """Install the hook, once a process. Does nothing if ``FOREBAY_TAKEOVER=0`` is set or Python is too old."""
    if sys.version_info < (3, 9) or os.environ.get("FOREBAY_TAKEOVER", "") == "0" or any(type(finder) is Hook for finder in sys.meta_path):
        return
    hook: Any = Hook()  # duck-typed: importing the abstract class would cost time
    sys.meta_path.insert(0, hook)
    for name in (*PATCHED, FSSPEC):
        if name in sys.modules:  # another .pth, before ours, has imported it
            replace_openers(sys.modules[name])


def replace_openers(module: ModuleType) -> None:
    """Replace the openers in ``module``. If anything goes wrong, webdataset stays as it was and training goes on."""
    try:
        if not _sidecar_is_named():
            return
        if module.__name__ == FSSPEC:
            known: Any = module
            known.known_implementations.setdefault("forebay", {"class": "forebay_loader.files.file_system.ForebayFileSystem"})
            return
        from forebay_loader.takeover.openers import replace_openers as replace  # noqa: PLC0415  # not before webdataset is there

        replace(module)
    except Exception as error:
        _complain(error)


def next_sitecustomize(path: Sequence[str]) -> Optional[ModuleSpec]:
    """Return the spec of the first other ``sitecustomize`` on ``path`` that has not run yet; None if there is none."""
    rest = [entry for entry in path if os.path.abspath(entry or ".") not in _PASSED]
    # PathFinder comes from sys.meta_path: importing it from importlib.machinery would cost as much as all the rest of this module.
    finders: Any = (finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder")
    found: Optional[ModuleSpec] = next((finder.find_spec("sitecustomize", rest) for finder in finders), None)
    if found is None or found.loader is None or not found.origin:
        return None
    _PASSED.add(os.path.dirname(os.path.abspath(found.origin)))
    return found


def run_instead(spec: ModuleSpec) -> None:
    """Run the module of ``spec`` as ``sitecustomize``, instead of the caller."""
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__, module.__package__ = spec, spec.loader, spec.origin, ""
    sys.modules["sitecustomize"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)


def _followed(spec: Optional[ModuleSpec]) -> Optional[ModuleSpec]:
    if spec is not None and hasattr(spec.loader, "exec_module"):
        followed: Any = _Followed(spec.loader)
        spec.loader = followed
    return spec


def _own_package(name: str) -> Optional[ModuleSpec]:
    from importlib.machinery import ModuleSpec, SourceFileLoader  # noqa: PLC0415  # not at the start of every process

    # Installed, both packages are in one folder; in a checkout each has its own source root.
    beside = os.path.dirname(_LOADER)
    roots = [_LOADER] if name == "forebay_loader" else [os.path.join(beside, name), os.path.join(os.path.dirname(beside), "proxy", name)]
    for root in roots:
        origin = os.path.join(root, "__init__.py")
        if os.path.isfile(origin):
            spec = ModuleSpec(name, SourceFileLoader(name, origin), origin=origin, is_package=True)
            spec.submodule_search_locations = [root]
            spec.has_location = True
            return spec
    return None


def _sidecar_is_named() -> bool:
    if os.environ.get("FOREBAY_URL") or os.environ.get("FOREBAY_SOCKET"):
        return True
    from forebay_proxy.wire.protocol.runfile import read_run_file  # noqa: PLC0415

    return read_run_file(os.environ) is not None


def _complain(error: Exception) -> None:
    if _COMPLAINED:
        return
    _COMPLAINED.append(type(error).__name__)
    try:
        from forebay_loader.base.takeover_report import REPORT  # noqa: PLC0415

        REPORT.direct(f"the takeover failed: {type(error).__name__}")
    except Exception:  # importing Forebay may be what failed: then only the line below reports it
        _COMPLAINED.append("not counted")
    text = f"webdataset could not be taken over ({type(error).__name__}: {error}); this process reads its shards as without Forebay"
    sys.stderr.write(f"forebay: {text}\n")
