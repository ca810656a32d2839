"""What a transform is: another source, argument, captured value or version is another key; what has no source is refused."""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
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
    return fingerprint_of(what, version).digest


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
    [("* by", "+ by"), ("by=2", "by=3"), ("SIZE = 3", "SIZE = 4"), ("x + 1", "x + 2"), ("def made", "def renamed"), ("'x'", "'y'")],
)
def test_each_change_is_another(tmp_path: Path, change: tuple[str, str]) -> None:
    """Its body, a default, a value of the module, a function that it calls, its name, a constant."""
    one, other = module(tmp_path, HEAD + BODY), module(tmp_path, (HEAD + BODY).replace(*change))
    assert digest(one.made) != digest(getattr(other, "renamed" if "renamed" in change[1] else "made"))


def test_code_that_was_edited_after_its_import_is_not_the_new_code(tmp_path: Path) -> None:
    """The file has the new source, the process the old code: neither the old key nor the new one."""
    old = module(tmp_path, HEAD + BODY)
    before = digest(old.made)
    path = Path(old.__file__)
    path.write_text((HEAD + BODY).replace("* by", "+ by"))
    new = module(tmp_path, (HEAD + BODY).replace("* by", "+ by"))
    assert digest(old.made) not in (before, digest(new.made))


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


def test_what_has_no_source_asks_for_a_version() -> None:
    """A lambda made from text, as on a command line; with a version it is taken."""
    made = eval("lambda sample: sample")
    with pytest.raises(MemoRefused, match=r"the source of .*<lambda> cannot be had.* give fb\.memo\(…, version=…\)"):
        digest(made)
    assert len({digest(made, 1), digest(made, 2), digest(made, "2")}) == 2


def test_what_cannot_be_compared_asks_for_a_version() -> None:
    """A lock, say: by name, and whose it is."""
    lock = threading.Lock()
    with pytest.raises(MemoRefused, match=r"uses 'by', and a _thread\.lock cannot be told .*version=…"):
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


def test_a_function_that_calls_itself_ends() -> None:
    """What was met before is not looked at again."""
    assert digest(calls_itself) == digest(calls_itself)


def test_which_of_those_met_before_counts() -> None:
    """The order of functions among the arguments is theirs."""
    orders = ((scaled, closed, scaled), (scaled, closed, closed))
    assert len({digest(functools.partial(scaled, by=order)) for order in orders}) == 2
