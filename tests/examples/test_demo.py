"""The demo itself, small: every act plays, and what it promises happens."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.lengths import ordinarily

from demo import __main__ as demo
from demo import acts, shards, yours
from demo.processes import OriginProcess, Sidecar
from demo.report import Report

SMALL = ["--shards", "4", "--shard-mb", "6", "--rate-mb", "20", "--step-ms", "10"]
ACTS = ordinarily(2, of=5, what="acts of the demo")  # all five have nine trainers, which then import torch themselves
PLAYED_S = 900.0  # a minute where nothing else runs


@pytest.fixture(autouse=True)
def photographs() -> None:
    try:
        shards.photographs()
    except shards.NoPhotographs as missing:
        pytest.skip(str(missing))


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The demo to its end."""
    environ = {**os.environ, "COLUMNS": "140", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "demo", *arguments], env=environ, capture_output=True, text=True, timeout=PLAYED_S, check=False
    )


@pytest.mark.needs("curl")
@pytest.mark.skipif(ACTS < 5, reason="scripts/test --long plays all five acts")
@pytest.mark.timeout(PLAYED_S + 100)
def test_all_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five acts in order; Forebay loses no sample to a cut or a kill, plain pipe:curl does; nothing is left behind.

    In a directory too deep for sockets, as a cluster's may be.
    """
    place = tmp_path / ("deep" * 20)
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    done = play(*SMALL)
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert re.findall(r"^(\d)  ", text, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    samples = int(re.search(r"4 shards, ([\d,]+) photographs", text)[1].replace(",", ""))  # type: ignore[index]
    trained = [(got.replace(",", ""), of.replace(",", "")) for got, of in re.findall(r"trained on ([\d,]+) of ([\d,]+) samples", text)]
    assert len(trained) == 3
    assert int(trained[0][0]) < int(trained[0][1])
    assert trained[1][0] == trained[1][1]
    assert trained[2] == (str(samples), str(samples))
    assert re.search(r"pid \d+ killed", text)
    assert "local files through Forebay" in text  # its verdict is a matter of timing, and tested where it is made
    assert "run -- " in text
    assert list(place.iterdir()) == []


@pytest.mark.needs("curl")
@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(PLAYED_S + 100)
def test_a_cut_and_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Acts 3 and 4: plain pipe:curl loses samples to a cut; Forebay loses none, neither to a cut nor to a kill. In a deep directory too."""
    monkeypatch.setenv("COLUMNS", "140")
    scale, _ = demo.parse(SMALL)
    (root := tmp_path / ("deep" * 20)).mkdir()
    (served := root / "shards").mkdir()
    built = shards.build(served, scale.shards, scale.shard_bytes)
    with (
        OriginProcess(served, latency_ms=scale.latency_ms, rate_mb=scale.rate_mb) as origin,
        Sidecar(root, 4 * built.bytes, [origin.base]) as sidecar,
    ):
        stage = acts.Stage(Report(), scale, root, built, origin, sidecar)
        direct, through = acts.cut_act(stage)
        killed = acts.kill_act(stage)
    assert re.search(r"pid \d+ killed", capsys.readouterr().out)
    assert direct["samples"] < acts.samples_in_first_shard(stage) == through["samples"]
    assert killed["samples"] == built.samples
    assert not through["error"]
    assert not killed["error"]


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while we looked
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if str(directory) in line else []
    return found


def test_ended_demo_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM in the middle ends sidecar, origin and trainer, and removes the directory."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "demo", "--shards", "2", "--shard-mb", "3", "--rate-mb", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "direct" not in process.stdout.readline():
            assert process.poll() is None
        assert processes_of(tmp_path)
        process.terminate()
        assert process.wait() == 130
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("curl")
@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(PLAYED_S + 100)
def test_own_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Given URLs, the same comparison runs on them, and stops at the limit."""
    monkeypatch.setenv("COLUMNS", "140")
    served = tmp_path / "served"
    served.mkdir()
    built = shards.build(served, 3, 2_000_000)
    with OriginProcess(served, latency_ms=5, rate_mb=0) as origin:
        code = demo.main([f"pipe:curl -s {origin.url('photos-{0000..0002}.tar')}", "--step-ms", "5", "--limit-gb", "0.005"])
    text, errors = capfd.readouterr()
    assert code == 0, text + errors
    assert f"2 of 3 shards, {built.bytes * 2 / 3 / 1e6:.0f} MB" in text
    assert all(name in text for name in ("direct", "cold", "warm", "local files"))
    assert "shards, the last in part, 5.0 MB: the same bytes each time" in text


@pytest.mark.parametrize("pattern", ["/nas/shards/{000..003}.tar", "pipe:zcat x.tar.gz", "s3://"])
def test_what_is_not_for_forebay_is_said(pattern: str) -> None:
    """Local paths, unknown commands and malformed URLs are named, not tried."""
    with pytest.raises(yours.NotForUs):
        yours.sources([pattern])


def test_named_hosts_are_allowed() -> None:
    """The hosts a user names on the command line may be reached, loopback among them; nothing else is."""
    found = yours.sources(["http://127.0.0.1:8000/{0..3}.tar", "pipe:curl -s https://example.org/a.tar", "s3://bucket/a.tar"])
    assert yours.allowed_origins(found) == ["http://127.0.0.1:8000", "https://example.org"]


def test_missing_photographs_end_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its photographs the demo says what to install and exits with 2."""
    monkeypatch.setattr(shards, "_find", lambda package, name: None)
    assert demo.main([]) == 2
    assert "pip install" in capsys.readouterr().out


def test_now_yours_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is a command that can be pasted: the forebay beside this very Python."""
    demo.now_yours(Report(), [])
    line = next(line for line in capsys.readouterr().out.splitlines() if "run -- " in line)
    beside = str(Path(sys.executable).with_name("forebay"))
    assert line.strip().split(" run -- ")[0] in (beside, "forebay", f"{sys.executable} -m forebay_proxy")
