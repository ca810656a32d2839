"""``forebay takeover install | remove``: one line in a training environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import invoke
from support.other_python import TAKEOVER, answer_of, clean_environment, other_python

from forebay_proxy.cli.run.takeover import HOOK, PTH_NAME, open_to_others, path_variables, pth_text

pytestmark = pytest.mark.each_python

HOOKED = "import json, sys; print(json.dumps(['forebay_takeover_hook' in sys.modules, sys.path]))"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return other_python(tmp_path_factory.mktemp("training") / "venv", without=("torch",))


@pytest.fixture(autouse=True)
def removed(python: str) -> None:
    pth(python).unlink(missing_ok=True)


def pth(python: str) -> Path:
    (packages,) = Path(python).parents[1].glob("lib/python3*/site-packages")
    return packages / PTH_NAME


def test_install_and_remove(tmp_path: Path, python: str) -> None:
    """A Python with no PYTHONPATH at all is hooked, and nothing of ours is left on its path; removed, also twice, it is as before."""
    environ = clean_environment(tmp_path / "run")
    assert f"installed: {pth(python)}" in invoke("takeover", "install", "--python", python).stdout
    hooked, path = answer_of(python, HOOKED, environ, "-E")  # type: ignore[misc]
    assert hooked
    assert str(TAKEOVER) not in path
    assert invoke("takeover", "remove", "--python", python).stdout == f"removed: {pth(python)}\n"
    assert answer_of(python, HOOKED, environ, "-E")[0] is False  # type: ignore[index]
    assert invoke("takeover", "remove", "--python", python).exit_code == 0


@pytest.mark.parametrize(("variables", "hooks"), [({"PYTHONPATH": str(TAKEOVER)}, 1), ({"FOREBAY_TAKEOVER": "0"}, 0)])
def test_hooks_of_a_process(tmp_path: Path, python: str, variables: dict[str, str], hooks: int) -> None:
    """Both ways in one process: one hook; none where it is turned off."""
    invoke("takeover", "install", "--python", python)
    code = "import json, sys; print(json.dumps([type(finder).__name__ for finder in sys.meta_path].count('Hook')))"
    assert answer_of(python, code, clean_environment(tmp_path / "run", **variables)) == hooks


def test_a_forebay_that_has_gone_is_silent(tmp_path: Path, python: str) -> None:
    """A .pth whose Forebay was removed says nothing at the start of every Python."""
    pth(python).write_text(pth_text(tmp_path / "it's gone"))
    assert answer_of(python, HOOKED, clean_environment(tmp_path / "run"))[0] is False  # type: ignore[index]


def test_a_folder_with_any_name() -> None:
    """The line is ASCII: a .pth is read in the encoding of the process's locale."""
    assert pth_text(Path("/b\u00fcro/\udcff")).isascii()
    assert r"p = '/b\xfcro'" in pth_text(Path("/b\u00fcro"))


def test_a_place_that_anybody_may_write_to(tmp_path: Path) -> None:
    """It is found on the way to the hook; a sticky folder such as /tmp is none."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / f"{HOOK}.py").touch()
    assert open_to_others(tmp_path / "a" / "b") is None
    (tmp_path / "a").chmod(0o1777)
    assert open_to_others(tmp_path / "a" / "b") is None
    (tmp_path / "a").chmod(0o777)
    assert open_to_others(tmp_path / "a" / "b") == tmp_path / "a"


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    """Before anything is written: it could not read the hook, and would complain at each start."""
    old = tmp_path / "python3.6"
    old.write_text(f'#!/bin/sh\necho \'["{tmp_path}", "3.6.8", false]\'\n')
    old.chmod(0o755)
    done = invoke("takeover", "install", "--python", str(old))
    assert done.exit_code == 2
    assert "is Python 3.6.8" in done.stderr
    assert not (tmp_path / PTH_NAME).exists()


def test_no_python(tmp_path: Path) -> None:
    """One line that names it and the flag."""
    done = invoke("takeover", "install", "--python", str(tmp_path / "python"))
    assert done.exit_code == 2
    assert "--python PATH" in done.stderr


@pytest.mark.parametrize(
    ("before", "after"), [("", "/t"), ("/a:/b", "/t:/a:/b"), ("/a:/t:/b", "/t:/a:/b"), (":/a", "/t::/a"), ("/a:", "/t:/a:")]
)
def test_python_path(before: str, after: str) -> None:
    """In front, and once, also in a run within a run; an empty entry, which is the working directory, stays."""
    assert path_variables(Path("/t"), {"PYTHONPATH": before}) == {"PYTHONPATH": after}
    assert path_variables(None, {}) == path_variables(Path("/a:b"), {}) == {}  # PYTHONPATH cannot hold a colon in a name
