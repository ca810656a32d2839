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
from forebay_loader.videos.transforms import mel_spectrogram

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


def test_arguments_count() -> None:
    """Of a partial and of a stage, and what a closure holds: arrays by their values."""
    partials = [functools.partial(scaled, by=by) for by in (1, 1.0, "1", (1,), [1], numpy.zeros(3), numpy.ones(3))]
    stages = [filters.map(one) for one in partials]
    closures = [closed(by) for by in (1, 2, numpy.zeros(3))]
    assert len({digest(one) for one in (scaled, *partials, *stages, *closures)}) == 1 + 7 + 7 + 3
    assert digest(closed(1)) == digest(closed(1))
    assert digest(functools.partial(scaled, by=numpy.ones(3))) == digest(partials[-1])


class Scaling:
    """A transform with a state of its own."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, sample: Any) -> Any:
        return sample * self.by

    def made(self, sample: Any) -> Any:
        return sample


def test_an_object_is_its_class_and_its_values() -> None:
    """As a callable, and as what a method is bound to."""
    assert digest(Scaling(1)) == digest(Scaling(1))
    assert len({digest(one) for one in (Scaling(1), Scaling(2), Scaling(1).made, Scaling(2).made)}) == 4


def test_a_helper_s_edit_is_not_seen(tmp_path: Path) -> None:
    """Nothing is followed: it needs another version."""
    one, other = module(tmp_path, HEAD + BODY), module(tmp_path, (HEAD + BODY).replace("x + 1", "x + 2"))
    assert digest(one.made) == digest(other.made)


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


def attributed(sample: Any) -> Any:
    return sample


def cell(by: Any) -> tuple[Any, Any]:
    def setter(value: Any) -> None:
        nonlocal by
        by = value

    return (lambda sample: by), setter


def setting(name: str, held: Any, of: Any = lambda held: held) -> tuple[Any, Any]:
    return of(held), lambda value: setattr(held, name, value)


def keyword(held: functools.partial[Any]) -> tuple[Any, Any]:
    return held, lambda value: held.keywords.update(by=value)


def filling(held: Any) -> tuple[Any, Any]:
    return Scaling(held), held.fill


def default(held: Any) -> tuple[Any, Any]:
    return held, lambda value: setattr(held, "__defaults__", (value,))


HOLDING = {
    "a closure": lambda: cell(1),
    "an attribute": lambda: setting("by", Scaling(1)),
    "a slot": lambda: setting("by", Slotted(1)),
    "what a method is bound to": lambda: setting("by", Scaling(1), lambda held: held.made),
    "an object in an object": lambda: setting("by", Scaling(1), lambda held: Scaling([held])),
    "the class": lambda: (Classwide(1), lambda value: setattr(Classwide, "factor", value)),
    "a partial": lambda: keyword(functools.partial(scaled, by=1)),
    "a default": lambda: default(types.FunctionType(scaled.__code__, globals(), "scaled", (1,))),
    "an attribute of the function": lambda: setting("by", attributed),
    "a stage": lambda: setting("by", Scaling(1), filters.map),
    "an array": lambda: filling(numpy.ones(3)),
}  # fmt: skip


@pytest.mark.parametrize("what", HOLDING)
def test_what_it_holds_counts_as_it_is_now(what: str) -> None:
    """Set after the transform was made, it is another one; set back, the first again."""
    transform, sets = HOLDING[what]()
    sets(1)
    first = digest(transform)
    sets(2)
    assert digest(transform) != first
    sets(1)
    assert digest(transform) == first


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
    """As is Forebay's own that uses one; another one is another."""
    assert len({digest(cached), digest(functools.lru_cache(scaled)), digest(mel_spectrogram)}) == 3


def test_many_bytes_that_it_holds_ask_for_a_version() -> None:
    """They would be read for each sample."""
    held = Scaling(numpy.zeros(65 << 20, "u1"))
    with pytest.raises(MemoRefused, match=r"more than 64 MiB.*version=…"):
        digest(held)
    assert digest(held, 1) != digest(Scaling(1), 1)
