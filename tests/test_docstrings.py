"""What ``help()`` says of the public names: every argument by its name, what is raised, and an example."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import forebay_loader as fb

pytest.importorskip("webdataset")

# What is called, or made, by a user; the others are errors and results.
CALLED = (
    "Clips", "IndexedShard", "IndexedShards", "Limits", "WebDataset", "WebLoader", "ahead", "batched", "by_epoch", "counters",
    "describe_state", "disable", "enable", "load_state", "memo", "merge_states", "padded", "postfix", "rng", "save_state", "sidecar",
    "stalls", "status", "tarfile_to_samples", "video", "worker_init",
)  # fmt: skip
RAISED = (
    "LoaderError", "NotResumable", "ProxyUnreachable", "ShardChanged", "ShardReadError", "StepsError", "TarFault", "TooManySkips",
    "VideoError",
)  # fmt: skip


def test_no_name_is_left_out() -> None:
    """Every public name is one or the other."""
    assert sorted((*CALLED, *RAISED)) == sorted(fb.__all__)


@pytest.mark.parametrize("name", CALLED)
def test_every_argument_is_named(name: str) -> None:
    """In the docstring itself: ``help()`` is where people look, and an argument without a word is a riddle."""
    called = getattr(fb, name)
    named = set(re.findall(r"``(\w+)``", inspect.getdoc(called) or ""))
    arguments = set(inspect.signature(called).parameters)
    assert arguments - named == set()


@pytest.mark.parametrize("name", CALLED)
def test_errors_and_an_example(name: str) -> None:
    """What is raised, or that nothing is; and lines to copy."""
    text = inspect.getdoc(getattr(fb, name)) or ""
    assert re.search(r"\b([Rr]aises|[Nn]ever raises)\b", text)
    assert re.search(r"\b[Ee]xample\b", text)


@pytest.mark.parametrize("name", [name for name in CALLED if "::\n\n" in (inspect.getdoc(getattr(fb, name)) or "")])
def test_examples_are_python(name: str) -> None:
    """Each block compiles, and what it takes from fb is there."""
    text = inspect.getdoc(getattr(fb, name)) or ""
    for block in re.findall(r"::\n\n((?: {4}.*\n)+)", text):
        code = inspect.cleandoc("\n" + block)
        compile(code, name, "exec")
        assert [word for word in re.findall(r"fb\.(\w+)", code) if not hasattr(fb, word)] == []


def test_every_error_named_is_there() -> None:
    """``fb.Something`` in a docstring is a public name."""
    for name in CALLED:
        words = re.findall(r"``fb\.(\w+)", inspect.getdoc(getattr(fb, name)) or "")
        assert [word for word in words if not hasattr(fb, word)] == [], name


def test_limits_are_short_in_signatures() -> None:
    """A default that fills three lines of ``help()`` hides the arguments around it."""
    limits = importlib.import_module("forebay_loader.base.timeouts").Limits
    assert repr(limits()) == "Limits()"
    assert repr(limits(resume_s=5.0, pause_s=0.1)) == "Limits(resume_s=5.0, pause_s=0.1)"
