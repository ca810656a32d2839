"""What a transform is: another source, argument, captured value or version is another key; what has no source is refused."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
from webdataset import filters

from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.fingerprint import fingerprint_of

pytestmark = pytest.mark.once  # of webdataset it takes the class of its stages, which both have

HEAD = "import logging\nimport numpy\nlog = logging.getLogger(__name__)\nSIZE = 3\ndef other(x):\n    return x + 1\n"
BODY = "def made(sample, *, by=2):\n    log.info('x')\n    return numpy.full(SIZE, other(len(sample) * by))\n"


def digest(what: Any, version: Any = None) -> bytes:
    return fingerprint_of(what, version)


def module(tmp_path: Path, text: str, name: str = "transforms_of_a_test") -> Any:
    path = tmp_path / f"{abs(hash(text))}" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_same_code_is_the_same(tmp_path: Path) -> None:
    """In another process and at another place of the file too: nothing of it is an address, or a number of a line."""
    one, moved = module(tmp_path, HEAD + BODY), module(tmp_path, HEAD + "\n\n" + BODY)
    assert digest(one.made) == digest(moved.made)


@pytest.mark.parametrize(
    "change",
    [("* by", "+ by"), ("by=2", "by=3"), ("SIZE = 3", "SIZE = 4"), ("def made", "def renamed"), ("'x'", "'y'")],
)
def test_each_change_is_another(tmp_path: Path, change: tuple[str, str]) -> None:
    """Its body, a default, a number of its module that it names, its name, a constant."""
    one, other = module(tmp_path, HEAD + BODY), module(tmp_path, (HEAD + BODY).replace(*change))
    assert digest(one.made) != digest(getattr(other, "renamed" if "renamed" in change[1] else "made"))


def test_code_that_was_edited_after_its_import_is_not_the_new_code(tmp_path: Path) -> None:
    """The file has the new source, the process the old code: what runs counts."""
    old = module(tmp_path, HEAD + BODY)
    before = digest(old.made)
    path = Path(old.__file__)
    path.write_text((HEAD + BODY).replace("* by", "+ by"))
    new = module(tmp_path, (HEAD + BODY).replace("* by", "+ by"))
    assert digest(old.made) == before != digest(new.made)


def scaled(sample: Any, by: Any = 2) -> Any:
    return sample * by


def closed(by: Any) -> Any:
    return lambda sample: sample * by


class Scaling:
    """A transform with a state of its own."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, sample: Any) -> Any:
        return sample * self.by

    def made(self, sample: Any) -> Any:
        return sample


def test_what_cannot_be_compared_asks_for_a_version() -> None:
    """A lock, say: by name, and whose it is."""
    lock = threading.Lock()
    with pytest.raises(MemoRefused, match=r"closed.*holds what cannot be told: a _thread\.lock cannot be told .*version=…"):
        digest(closed(lock))
    assert digest(closed(lock), 1) == digest(closed(threading.Lock()), 1)


def test_a_version_stands_for_the_code_and_not_for_the_arguments(tmp_path: Path) -> None:
    """Whoever gives one says when the code changed; arguments still tell by themselves."""
    one, other = module(tmp_path, HEAD + BODY), module(tmp_path, (HEAD + BODY).replace("* by", "+ by"))
    assert digest(one.made, 1) == digest(other.made, 1)
    assert digest(functools.partial(scaled, by=1), 1) != digest(functools.partial(scaled, by=2), 1)


def calls_itself(sample: Any) -> Any:
    logging.getLogger("x").info("y")
    return calls_itself(sample[1:]) if sample else scaled(sample)


def test_a_function_that_holds_itself_ends() -> None:
    """By its closure, or in a list."""

    def made(sample: Any) -> Any:
        return made(sample[1:]) if sample else held

    held: list[Any] = [made]
    held.append(held)
    assert digest(made) == digest(made)


class Slotted:
    """An object without a dict."""

    __slots__ = ("by",)

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, sample: Any) -> Any:
        return sample


class Classwide(Scaling):
    """With a value of the class."""

    factor = 1


HOLDING = {
    "a closure": closed,
    "an attribute": Scaling,
    "a slot": Slotted,
    "what a method is bound to": lambda by: Scaling(by).made,
    "an object in an object": lambda by: Scaling([Scaling(by)]),
    "a partial": lambda by: functools.partial(scaled, by=by),
    "a default": lambda by: types.FunctionType(scaled.__code__, globals(), "scaled", (by,)),
    "a stage": lambda by: filters.map(functools.partial(scaled, by=by)),
}


@pytest.mark.parametrize("what", HOLDING)
def test_what_it_holds_counts(what: str) -> None:
    """By value and type, arrays by their values; the same value again is the same transform."""
    values = (1, 2, 1.0, "1", (1,), [1], numpy.zeros(3), numpy.ones(3))
    assert len({digest(HOLDING[what](by)) for by in values}) == len(values)
    assert digest(HOLDING[what](numpy.ones(3))) == digest(HOLDING[what](numpy.ones(3)))


OWN = {
    "a list": "[{}]",
    "a dict of functions": "{{'a': lambda sample: {}}}",
    "a set": "{{{}}}",
    "an array": "numpy.array([{}])",
    "a partial": "functools.partial(pow, {})",
    "a class in it": "type('value', (), {{'__qualname__': f'{{owner}}.value', 'n': {}}})",
}


@pytest.mark.parametrize("what", OWN)
def test_what_stands_in_a_class_or_at_a_function_is_its_own(tmp_path: Path, what: str) -> None:
    """Whatever it is: an edit there is one of the class itself."""
    sources = [
        "import functools, numpy\n"
        f"class Made:\n    owner = 'Made'\n    value = {OWN[what].format(n)}\n    def __call__(self, sample): return self.value\n"
        f"def made(sample): return made.value\nowner = 'made'\nmade.value = {OWN[what].format(n)}\n"
        for n in (3, 3, 5)
    ]
    found = [module(tmp_path, source) for source in sources]
    for of in (lambda one: digest(one.Made()), lambda one: digest(one.made)):
        first, again, other = map(of, found)
        assert first == again != other


def test_what_a_class_holds_and_nobody_can_tell_is_left_out() -> None:
    """A table of locks, say: it is no value."""
    Classwide.factor = {"lock": threading.Lock()}  # type: ignore[assignment]
    try:
        assert digest(Classwide(1)) == digest(Classwide(1))
    finally:
        Classwide.factor = 1


@functools.lru_cache
def cached(sample: Any) -> Any:
    return sample


def test_a_cached_function_is_the_function() -> None:
    """Another one is another."""
    assert digest(cached) != digest(functools.lru_cache(scaled))


def test_many_bytes_that_it_holds_ask_for_a_version() -> None:
    """They would be read for each sample."""
    held = Scaling(numpy.zeros(65 << 20, "u1"))
    with pytest.raises(MemoRefused, match=r"more than 64 MiB.*version=…"):
        digest(held)
    assert digest(held, 1) != digest(Scaling(1), 1)
