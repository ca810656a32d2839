"""What ``help()`` says of the public names: every argument by its name, what is raised, and an example."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import textwrap

import pytest

import forebay_loader as fb

pytest.importorskip("webdataset")

# What is called, or made, by a user; the others are errors and results.
CALLED = (
    "Clips", "IndexedShard", "IndexedShards", "Limits", "WebDataset", "WebLoader", "ahead", "batched", "by_epoch", "counters",
    "describe_state", "disable", "enable", "frames", "load_state", "memo", "merge_states", "padded", "postfix", "rng", "save_state",
    "sidecar",
    "stalls", "status", "tarfile_to_samples", "video", "worker_init",
)  # fmt: skip
RAISED = (
    "LoaderError", "NotResumable", "ProxyUnreachable", "ShardChanged", "ShardReadError", "StepsError", "TarFault", "TooManySkips",
    "VideoError",
)  # fmt: skip


def test_no_name_is_left_out() -> None:
    """Every public name is one or the other."""
    assert sorted((*CALLED, *RAISED)) == sorted(fb.__all__)


def section(name: str, title: str) -> dict[str, str]:
    """The entries of a section of a docstring: what is named, and what is said of it."""
    text = inspect.getdoc(getattr(fb, name)) or ""
    found = re.search(rf"^{title}:\n((?: {{4}}.*\n?|\n)*)", text, re.MULTILINE)
    return dict(re.findall(r"^ {4}([\w.*]+): ((?:.+\n?)(?: {8}.*\n?)*)", found[1], re.MULTILINE)) if found else {}


@pytest.mark.parametrize("name", CALLED)
def test_every_argument_is_explained(name: str) -> None:
    """In the docstring itself, in the order of the signature: ``help()`` is where people look."""
    arguments = [
        {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
        for one in inspect.signature(getattr(fb, name)).parameters.values()
    ]
    assert list(section(name, "Args")) == arguments


@pytest.mark.parametrize("name", CALLED)
def test_errors_and_an_example(name: str) -> None:
    """What is raised, or that nothing is; and lines to copy, which loader/test_docstring_examples.py runs."""
    text = inspect.getdoc(getattr(fb, name)) or ""
    assert section(name, "Raises") or "never raises" in text
    for error in section(name, "Raises"):
        assert hasattr(fb, error.removeprefix("fb.")) if error.startswith("fb.") else issubclass(getattr(builtins, error), Exception)
    assert "\nExamples:\n" in text


@pytest.mark.parametrize("name", [name for name in CALLED if inspect.isfunction(getattr(fb, name))])
def test_what_is_returned_is_said(name: str) -> None:
    """Of a function that returns something."""
    returns = inspect.signature(getattr(fb, name)).return_annotation
    assert ("\nReturns:\n" in (inspect.getdoc(getattr(fb, name)) or "")) == (returns != "None")


@pytest.mark.parametrize("name", CALLED)
def test_a_signature_fits_a_screen(name: str) -> None:
    """What ``help()`` prints of it, at 100 columns."""
    text = f"{name}{inspect.signature(getattr(fb, name))}"
    assert len(textwrap.wrap(text, 100)) <= 24


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
