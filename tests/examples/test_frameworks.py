"""The examples of training frameworks: each one reads a whole epoch through a sidecar, its ranks in step."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.lengths import LEFT, LONG
from support.other_python import clean_environment
from support.ports import free_ports
from support.sidecar import Sidecar, environment, forebay, running
from support.training import popen
from support.warm_python import python_program

make_shards = pytest.importorskip("make_shards", reason="needs Pillow, as the examples do").make_shards
pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("accelerate_train", "ddp", "lightning_module", "open_clip_data", "resume", "stateful", "timm_train")
SHARDS, SAMPLES, RANKS = 4, 24, 2  # a shard for each worker of both ranks
OTHERS = Path(f"{sys.prefix}-frameworks") / "bin" / "python"  # OpenCLIP and timm with their webdataset
PROGRAM_S = 240.0
APART = "-- the next\n"
ONE_AFTER_THE_OTHER = f"""
import importlib, os, sys
for each in sys.argv[2:]:
    example, os.environ["MASTER_PORT"] = each.split(":")
    importlib.import_module(example).main(sys.argv[1])
    print({APART!r}, end="", flush=True)
"""

if not LONG:
    LEFT.append("the examples of OpenCLIP and timm, and the command lines of all examples")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The pattern of a few small shards in a folder."""
    return str(make_shards(tmp_path_factory.mktemp("shards"), SHARDS, SAMPLES))


@pytest.fixture
def origin(shards: str) -> Iterator[FakeServer]:
    with FakeServer().running() as server:
        for path in Path(shards).parent.iterdir():
            server.put(f"/{path.name}", path.read_bytes())
        yield server


@pytest.fixture
def sidecar(tmp_path: Path, shards: str, origin: FakeServer) -> Iterator[Sidecar]:
    with running(tmp_path, "--cache-size", "200MB", "--file-root", str(Path(shards).parent), allow=[origin.url]) as found:
        yield found


def told(process: subprocess.Popen[str]) -> str:
    """What a program printed; AssertionError with its stderr when it fails."""
    output, errors = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, errors[-3000:]
    return output


def begun(arguments: list[str], sidecar: Sidecar, **variables: str) -> subprocess.Popen[str]:
    """``python ARGUMENTS``, forked from a process that has imported torch and webdataset."""
    environ = environment(sidecar.directory, FOREBAY_URL=sidecar.url, **variables)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return python_program(arguments, environ, sidecar.directory, **pipes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, shards: str) -> dict[str, list[str]]:
    """What each rank of the examples with a process group printed. Both examples in one program: a first step imports torch for seconds."""
    pytest.importorskip("accelerate")
    groups = dict(zip(("ddp", "accelerate_train"), map(str, free_ports(2)), strict=True))
    where = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(RANKS), "ACCELERATE_USE_CPU": "true"}
    folder = str(Path(shards).parent)
    with running(tmp_path_factory.mktemp("trained"), "--cache-size", "200MB", "--file-root", folder) as sidecar:
        words = ["-c", ONE_AFTER_THE_OTHER, f"pipe:cat {shards}", *(f"{name}:{port}" for name, port in groups.items())]
        ranks = [begun(words, sidecar, **where, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(RANKS)]
        outputs = [told(process).split(APART) for process in ranks]
        assert whole(sidecar)
    return {name: [output[at] for output in outputs] for at, name in enumerate(groups)}


def steps_and_samples(outputs: list[str]) -> list[tuple[int, int]]:
    """Of each rank."""
    return [(int(steps), int(samples)) for steps, samples in re.findall(r"(\d+) steps, (\d+) samples", "".join(outputs))]


def whole(sidecar: Sidecar) -> bool:
    """Whether every shard came through the sidecar."""
    return [shard["complete"] for shard in sidecar.shards().values()] == [True] * SHARDS


@pytest.mark.parametrize("example", FRAMEWORKS)
def test_each_is_short(example: str) -> None:
    """Below 60 lines: it is read before it is run."""
    assert len((EXAMPLES / f"{example}.py").read_text("utf-8").splitlines()) < 60


def test_the_table_names_them() -> None:
    """docs/recipes.md has a row of each example, and no other."""
    table = (EXAMPLES.parent / "docs" / "recipes.md").read_text("utf-8").partition("| framework |")[2].partition("\n\n")[0]
    assert set(re.findall(r"examples/(\w+)\.py", table)) == set(FRAMEWORKS)


@pytest.mark.parametrize("example", ["ddp", "accelerate_train"])
def test_ranks_in_step(trained: dict[str, list[str]], example: str) -> None:
    """Both ranks take as many steps, together they read every sample once, and the first says why it was idle."""
    found = steps_and_samples(trained[example])
    assert ({steps for steps, _ in found}, sum(samples for _, samples in found)) == ({4}, SHARDS * SAMPLES)
    assert re.search(r"^stall [\d.]+ % of \d+ s", trained[example][0], re.MULTILINE)


def test_a_stopped_epoch_goes_on(sidecar: Sidecar, shards: str, tmp_path: Path) -> None:
    """With torchdata's StatefulDataLoader: the batches before the stop and those after it are those of a run that was not stopped."""
    urls = f"pipe:cat {shards}"
    script = str(EXAMPLES / "stateful.py")
    at_once = told(begun([script, urls, str(tmp_path / "whole.pt")], sidecar))
    first = told(begun([script, urls, str(tmp_path / "part.pt"), "3"], sidecar))
    rest = told(begun([script, urls, str(tmp_path / "part.pt")], sidecar))
    assert _batches(first) + _batches(rest) == _batches(at_once)
    assert (len(_batches(first)), "goes on from" in rest) == (3, True)


@dataclass
class KilledRun:
    """Its checkpoints, what it printed until it was killed, and what one prints that is not."""

    words: list[str]
    folder: Path
    before: list[str]
    whole: list[str]
    sidecar: Sidecar

    def again(self, *, ranks: int, tmp_path: Path) -> list[list[str]]:
        """What the ranks of a new run print, each with a copy of the checkpoints."""
        folder = str(shutil.copytree(self.folder, tmp_path / "checkpoints"))
        programs = [begun([*self.words, folder], self.sidecar, RANK=str(rank), WORLD_SIZE=str(ranks)) for rank in range(ranks)]
        return [_steps(told(program)) for program in programs]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, shards: str) -> Iterator[KilledRun]:
    """A run of the example that is killed behind its fourth step, one after its checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    with running(tmp_path_factory.mktemp("sidecar"), "--cache-size", "200MB", "--file-root", str(Path(shards).parent)) as sidecar:
        words = [str(EXAMPLES / "resume.py"), f"pipe:cat {shards}"]
        whole = _steps(told(begun([*words, str(folder / "whole")], sidecar)))
        process = begun([*words, str(folder / "part")], sidecar)
        assert process.stdout is not None
        before = [process.stdout.readline().rstrip() for _ in range(4)]
        process.kill()
        process.communicate()
        yield KilledRun(words, folder / "part", before, whole, sidecar)


def test_a_killed_run_goes_on(killed: KilledRun, tmp_path: Path) -> None:
    """``kill -9`` of the trainer: behind its last checkpoint come the very batches of a run that was not killed."""
    assert killed.before == killed.whole[:4]
    assert killed.again(ranks=1, tmp_path=tmp_path) == [killed.whole[3:]]


def test_a_killed_run_goes_on_with_two_ranks(killed: KilledRun, tmp_path: Path) -> None:
    """Together they read what one rank had not, and nothing twice."""
    rest = [key for rank in killed.again(ranks=2, tmp_path=tmp_path) for line in rank for key in _keys(line)]
    assert sorted(rest) == sorted(key for line in killed.whole[3:] for key in _keys(line))


def _keys(line: str) -> list[str]:
    return line.partition(": ")[2].split()


def _steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def _batches(output: str) -> list[str]:
    return [line for line in output.splitlines() if re.match(r"\d{6}-\d{4}", line)]


long = pytest.mark.skipif(not LONG, reason="scripts/test --long runs it")


@long
@pytest.mark.parametrize("example", ["accelerate_train", "ddp", "lightning_module", "resume", "stateful"])
def test_as_documented(example: str, tmp_path: Path) -> None:
    """The lines of its docstring, typed into a shell, with another folder for the shards."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{example}.py").read_text("utf-8")), clean=False) or ""
    lines = "\n".join(line.strip() for line in docstring.splitlines() if line.startswith("    "))
    script = lines.replace("/tmp/", f"{tmp_path}/").replace("examples/", f"{EXAMPLES}/")
    try:
        output = told(popen(tmp_path, ["sh", "-ec", script], FOREBAY_CACHE_SIZE="200MB"))
    finally:  # a sidecar waits a minute for its next user
        forebay(tmp_path, "stop")
    assert re.search(r"\d+ steps|step \d+:", output.partition("written")[2]), output


# 8 and 15 seconds of a processor, 5 of them for imports, and an environment of 142 MB: too much for the ordinary run.
@long
@pytest.mark.skipif(not OTHERS.exists(), reason=f"needs {OTHERS}: scripts/test --long makes it")
@pytest.mark.parametrize("example", ["open_clip_data", "timm_train"])
def test_taken_over(example: str, sidecar: Sidecar, shards: str, origin: FakeServer, tmp_path: Path) -> None:
    """Other people's data code, which names no Forebay: ``forebay run`` leads it to the sidecar, and every sample comes.

    Their torchvision is for CUDA: two of its operators are declared before it is imported, which none of this uses.
    """
    script = tmp_path / "with_shim.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES.parent / 'benchmarks' / 'takeover_programs')!r}); import shim, runpy\n"
        f"if __name__ == '__main__': runpy.run_path({str(EXAMPLES / f'{example}.py')!r}, run_name='__main__')\n"
    )
    what = [f"pipe:cat {shards}"] if example == "open_clip_data" else [origin.url, Path(shards).name]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "1", "RANK": "0"}
    environ = clean_environment(tmp_path / "run", FOREBAY_URL=sidecar.url, **where)
    command = [sys.executable, "-P", "-m", "forebay_proxy", "run", "--", str(OTHERS), str(script), *what, str(SHARDS * SAMPLES)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{SHARDS * SAMPLES} samples" in done.stdout
    assert "0 went direct" in done.stderr
    assert whole(sidecar)
