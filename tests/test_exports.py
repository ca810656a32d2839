"""The public names, frozen: taking one away or adding one is a decision, and CHANGELOG.md says why."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import verbs

ROOT = Path(__file__).parents[1]

LOADER = {
    "Clips", "IndexedShard", "IndexedShards", "Limits", "LoaderError", "NotResumable", "ProxyUnreachable", "ShardChanged",
    "ShardReadError", "StepsError", "TarFault", "TooManySkips", "VideoError", "WebDataset", "WebLoader", "ahead", "batched", "by_epoch",
    "counters", "describe_state", "disable", "enable", "frames", "load_state", "memo", "merge_states", "padded", "postfix", "rng",
    "save_state",
    "sidecar", "stalls", "status", "tarfile_to_samples", "video", "worker_init",
}  # fmt: skip
VERBS = {
    "serve", "run", "env", "warm", "status", "ls", "evict", "verify", "plan", "doctor", "takeover", "config", "index",
    "ps", "stop", "check", "try", "dashboard", "stage",
}  # fmt: skip
SETTINGS = {
    "host", "port", "socket", "cache_dir", "cache_size", "free_floor", "allow_network_fs", "allow_origin", "strict_origins", "allow_uid",
    "allow_profile", "gs_endpoint", "gs_anonymous", "pass_header",
    "secret_param", "file_root", "token", "revalidate", "origin_digests", "verify_every_s",
    "prefetch", "set", "shared", "origin_connections", "drain_timeout_s",
    "connect_timeout_s", "idle_timeout_s", "retry_budget_s", "idle_exit_s", "access_log", "log_level", "log_format",
}  # fmt: skip


@pytest.mark.parametrize(("module", "names"), [("forebay_loader", LOADER)])
def test_public_names(module: str, names: set[str]) -> None:
    """A module's ``__all__`` is what users were promised, and everything in it is there."""
    imported = importlib.import_module(module)
    assert set(imported.__all__) == names
    assert all(hasattr(imported, name) for name in names)
    assert dir(imported) == sorted(names)


def test_no_public_name_hides_a_package() -> None:
    """``fb.video`` is the function, and each package below ``forebay_loader`` is found by its own name, as ``import … as …`` needs."""
    code = "import forebay_loader as fb; import forebay_loader.videos.sampling as s; print(s.__name__, callable(fb.video))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout.split() == ["forebay_loader.videos.sampling", "True"]
    assert [name for name in LOADER if any((ROOT / "loader/forebay_loader" / name).glob("*.py"))] == []


def test_loader_names_have_docstrings() -> None:
    """Everything the loader offers explains itself."""
    loader = importlib.import_module("forebay_loader")
    assert [name for name in LOADER if not (getattr(loader, name).__doc__ or "").strip()] == []


def test_verbs() -> None:
    """The command line has these verbs, each with a help text."""
    commands = verbs()
    assert {name for name, command in commands.items() if not command.hidden} == VERBS
    assert all(command.help for command in commands.values())


def test_settings_are_the_flags() -> None:
    """One field is one flag, one variable and one key of forebay.toml; these names are all of them."""
    assert set(importlib.import_module("forebay_proxy.config.settings").Settings.model_fields) == SETTINGS


def test_the_proxy_package_loads_nothing() -> None:
    """``import forebay_proxy`` costs nothing inside a training process."""
    code = "import sys; before = set(sys.modules); import forebay_proxy; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "proxy", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["forebay_proxy"]


def test_both_packages_say_their_version() -> None:
    """By the name everybody looks for; another name is still an AttributeError."""
    version = importlib.import_module("forebay_proxy.wire.protocol.version").VERSION
    assert version[0].isdigit()
    for name in ("forebay_proxy", "forebay_loader"):
        package = importlib.import_module(name)
        assert package.__version__ == version
        with pytest.raises(AttributeError, match="__versoin__"):
            _ = package.__versoin__


def test_the_package_runs_as_the_command() -> None:
    """``python -m forebay_proxy`` is ``forebay``, by its name too."""
    done = subprocess.run(
        [sys.executable, "-m", "forebay_proxy", "--version"], cwd=ROOT / "proxy", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("forebay, version ")
