"""The hook that every Python of a ``forebay run`` starts with: what it replaces, what it leaves alone, what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.other_python import TAKEOVER, answer_of, clean_environment, other_python
from support.tars import expected, tar_shard

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

once = pytest.mark.once  # nothing in it depends on webdataset's version
TAKEN = """
import json, sys, webdataset
import webdataset.cache, webdataset.tariterators
cache, tars, gopen = webdataset.cache, webdataset.tariterators, sys.modules["webdataset.gopen"]
openers = [getattr(tars, "url_opener", None), getattr(cache, "cached_url_opener", None)]
openers += [kind.__call__ for kind in (getattr(cache, "StreamingOpen", None), getattr(cache, "FileCache", None)) if kind]
replaced = [hasattr(opener, "__wrapped__") for opener in openers if opener]"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return other_python(tmp_path_factory.mktemp("training") / "venv", without=("torch",))  # webdataset imports it, in seconds


def environment(tmp_path: Path, *path: Path, **variables: str) -> dict[str, str]:
    entries = os.pathsep.join(map(str, (TAKEOVER, *path)))
    return clean_environment(tmp_path / "run", PYTHONPATH=entries, **{"FOREBAY_URL": "http://127.0.0.1:9", **variables})


def test_every_opener_is_replaced(tmp_path: Path, python: str) -> None:
    """In an environment without Forebay, and by the time the import of webdataset ends."""
    found = "[gopen.gopen_schemes['s3'], gopen.rewrite_url, webdataset.torch_video, webdataset.autodecode.torch_video]"
    code = f"{TAKEN}\nprint(json.dumps([replaced, [each.__module__ for each in {found}]]))"
    replaced, ours = answer_of(python, code, environment(tmp_path))  # type: ignore[misc]
    assert len(replaced) >= 2
    assert all(replaced)
    assert ours == ["forebay_loader.stream.webdataset_openers"] * 2 + ["forebay_loader.videos.torch_video"] * 2


def test_names_and_handlers_are_watched(tmp_path: Path, python: str) -> None:
    """Of webdataset's stages and of a script's own, which imports them by name: they are still webdataset's, and pickle."""
    code = "import json, pickle, webdataset as w; from webdataset.tariterators import tar_file_expander as t, url_opener as u; "
    code += "named = [t, u, w.warn_and_continue]; all = [w.filters.FilterFunction.__call__, w.DataPipeline.iterator1, *named]; "
    code += "print(json.dumps([[hasattr(one, '__wrapped__') for one in all], [pickle.loads(pickle.dumps(one)) is one for one in named]]))"
    assert answer_of(python, code, environment(tmp_path)) == [[True] * 5, [True] * 3]


LENIENT = """
import json, os, warnings
warnings.simplefilter("ignore")
import webdataset
def refuse(sample):
    raise ValueError(sample["__key__"])
assert list(webdataset.WebDataset("s3://bucket/000.tar", shardshuffle=False).map(refuse, handler=lambda error: True)) == []
print(json.dumps([json.loads(line)["key"] for line in open(os.environ["FOREBAY_SKIPS_FILE"])]))"""


def test_what_an_unchanged_script_passes_over_is_listed(tmp_path: Path, python: str, proxy: FakeServer) -> None:
    """By a lambda of its own, in a stage of webdataset's."""
    proxy.put("/s3/bucket/000.tar", tar_shard(0))
    environ = environment(tmp_path, FOREBAY_URL=proxy.url, FOREBAY_SKIPS_FILE=str(tmp_path / "skips"))
    assert answer_of(python, LENIENT, environ) == list(expected(1))


@once
def test_nothing_else_of_our_environment_is_seen(tmp_path: Path, python: str) -> None:
    """Our two packages are found, and no folder of the environment they are installed in is on the path."""
    code = f"{TAKEN}\nimport forebay_loader; where = forebay_loader.__path__[0]; print(json.dumps([where, sys.path]))"
    where, path = answer_of(python, code, environment(tmp_path))
    assert Path(where) == TAKEOVER.parents[1]
    assert not [entry for entry in path if where.startswith(entry.rstrip("/") + "/") and entry]


@once
def test_an_installed_forebay_is_preferred(tmp_path: Path, python: str) -> None:
    """A training environment with a Forebay of its own keeps it: one process has one."""
    own = tmp_path / "own"
    for name in ("forebay_loader", "forebay_proxy"):
        (own / name).mkdir(parents=True)
        (own / name / "__init__.py").write_text("")
    code = "import json, forebay_loader, forebay_proxy; print(json.dumps([forebay_loader.__path__[0], forebay_proxy.__path__[0]]))"
    assert answer_of(python, code, environment(tmp_path, own)) == [str(own / "forebay_loader"), str(own / "forebay_proxy")]


@once
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another sitecustomize"])
def test_without_webdataset_nothing_is_imported(tmp_path: Path, python: str, beside: bool) -> None:
    """A process that never imports it has one module more than without us, and that alone; Debian's Python brings a sitecustomize."""
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    if beside:
        (tmp_path / "sitecustomize.py").write_text("")
    bare = {**environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    with_us = set(answer_of(python, code, environment(tmp_path, tmp_path)))  # type: ignore[call-overload]
    more = with_us - set(answer_of(python, code, bare))  # type: ignore[call-overload]
    assert "sitecustomize" in with_us
    assert more - {"__future__", "sitecustomize"} == {"forebay_takeover_hook"}
    assert not (beside and "sitecustomize" in more)


@once
@pytest.mark.parametrize("changes", [{"FOREBAY_URL": ""}, {"FOREBAY_TAKEOVER": "0"}], ids=["no sidecar", "turned off"])
def test_a_silent_no_op(tmp_path: Path, python: str, changes: dict[str, str]) -> None:
    """Without a sidecar, or where it was turned off, webdataset is as it came, and nothing is said."""
    code = f"{TAKEN}\nprint(json.dumps([any(replaced), 'forebay_loader' in sys.modules]))"
    environ = environment(tmp_path, **changes)
    done = subprocess.run([python, "-W", "ignore", "-c", code], env=environ, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "[false, false]"
    assert "forebay" not in done.stderr


@once
def test_a_failed_takeover_leaves_webdataset_alone(tmp_path: Path, python: str) -> None:
    """An installed Forebay without this part: one line on stderr, and the script goes on."""
    for name in ("forebay_loader", "forebay_proxy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    code = f"{TAKEN}\nprint(json.dumps(any(replaced)))"
    environ = environment(tmp_path, tmp_path)
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "false"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("forebay:")]
    assert "could not be taken over (ModuleNotFoundError" in line


@once
@pytest.mark.parametrize("leaves", ["sys.path.remove(__file__.rpartition('/')[0])", "None"], ids=["as tracers do", "carelessly"])
def test_a_sitecustomize_that_chains_by_itself(tmp_path: Path, python: str, leaves: str) -> None:
    """One that imports the next, having taken its folder from the path or not, leads to the third; each runs once."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    note = f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write(__file__ + chr(10))\n"
    chain = f"{leaves}; del sys.modules['sitecustomize']; import sitecustomize\n"
    (first / "sitecustomize.py").write_text(note + chain)
    (second / "sitecustomize.py").write_text(note)
    answer_of(python, "print(1)", environment(tmp_path, first, second))
    assert (tmp_path / "ran").read_text().split() == [str(first / "sitecustomize.py"), str(second / "sitecustomize.py")]


@once
def test_a_sitecustomize_that_fails_is_reported_by_site(tmp_path: Path, python: str) -> None:
    """Its error is python's to report; the hook is in all the same."""
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    code = "import json, sys; print(json.dumps(type(sys.meta_path[0]).__name__))"
    done = subprocess.run(
        [python, "-c", code], env=environment(tmp_path, tmp_path), capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == '"Hook"'
    assert "RuntimeError: theirs" in done.stderr


@once
def test_a_loader_is_its_own_again(tmp_path: Path, python: str) -> None:
    """After the import nothing of the hook is left in the module: resources and sources are found as before."""
    code = f"{TAKEN}\nimport inspect; print(json.dumps([type(gopen.__loader__).__name__, 'gopen_schemes' in inspect.getsource(gopen)]))"
    assert answer_of(python, code, environment(tmp_path)) == ["SourceFileLoader", True]


@once
@pytest.mark.parametrize("next_one", [True, False])
def test_a_program_with_an_old_python(tmp_path: Path, next_one: bool) -> None:
    """It inherits PYTHONPATH: nothing of ours runs there, nothing is printed, and its own sitecustomize does run."""
    if next_one:
        (tmp_path / "sitecustomize.py").write_text("HERE = __file__\n")
    code = f"import json, sys; sys.version_info = (3, 6, 9); sys.path[:] = [{str(TAKEOVER)!r}, {str(tmp_path)!r}]\n"  # no distribution's
    code += "try:\n import sitecustomize; found = sitecustomize.HERE\nexcept ImportError as error:\n found = error.name\n"
    code += "print(json.dumps([found, 'forebay_takeover_hook' in sys.modules]))"
    found = answer_of(sys.executable, code, clean_environment(tmp_path / "run"), "-S")
    assert found == [str(tmp_path / "sitecustomize.py") if next_one else "sitecustomize", False]
    assert "__future__" not in (TAKEOVER / "sitecustomize.py").read_text()  # which 3.6 could not read


@once
def test_fsspec_knows_forebay(tmp_path: Path, python: str) -> None:
    """By its scheme, without an installed Forebay; nothing of ours is imported for that."""
    code = (
        "import json, sys, fsspec; print(json.dumps(['forebay' in fsspec.available_protocols(), "
        "sorted(name for name in sys.modules if name.startswith('forebay_loader'))]))"
    )
    assert answer_of(python, code, environment(tmp_path)) == [True, []]
