"""``forebay stage`` as a program: far origin, sidecar, processes, and a folder that holds the same bytes whatever happened on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import invoke
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, environment, wait_until
from support.stage_work import files_of, put_shards
from support.verbs import verb_process

from forebay_proxy.cli.options import Seams
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.wire.protocol.runfile import read_run_file


def begin(folder: Path, sidecar: Sidecar, *arguments: str) -> subprocess.Popen[bytes]:
    return verb_process(environment(folder, FOREBAY_URL=sidecar.url), "stage", *arguments, directory=folder)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.usefixtures("through_sidecar")
def test_killed_at_several_moments(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """In each phase: the same command goes on at once, and the bytes are those of a run that nobody killed; nothing is read twice."""
    put_shards(origin, "killed", (12, 0, 9, 14))
    src = origin.url("/killed/{00..03}.tar")
    asked = (src, "out", "--map", "support.stage_work:slow", "--samples-per-shard", "4", "--shuffle", "7", "--processes", "1")
    whole = tmp_path / "whole"
    code, out, err = staged(sidecar, asked[0], str(whole), *asked[2:], "--json")
    assert code == 0, err
    assert json.loads(out) == {
        "event": "end", "shards": 9, "samples": 35, "bytes": sum((whole / f"0000{n}.tar").stat().st_size for n in range(9)),
        "failed": 0, "destination": str(whole),
    }  # fmt: skip
    done = tmp_path / "out" / "_stage" / "done"
    for record in ("part-00000.json", "00002.json"):
        process = begin(tmp_path, sidecar, *asked)
        wait_until((done / record).exists, every_s=0.002)
        process.kill()
        ended(process)
        assert not (tmp_path / "out" / "sizes.json").exists()
    code, _, err = ended(begin(tmp_path, sidecar, *asked, "--quiet"))
    assert (code, err) == (0, "")
    assert files_of(tmp_path / "out") == files_of(whole)
    assert [seen.headers.get("range") for seen in origin.seen("/killed/00.tar")].count("bytes=0-8388607") == 1


def test_a_sidecar_that_is_killed_is_started_again(tmp_path: Path, origin: ScriptedOrigin) -> None:
    """One that the stage started: at its address, and the output is whole."""
    put_shards(origin, "lost", (70, 70, 70))
    environ = environment(tmp_path, FOREBAY_ALLOW_ORIGIN=origin.base, FOREBAY_CACHE_DIR=str(tmp_path / "cache"), FOREBAY_SOCKET="off")
    environ |= {"FOREBAY_CACHE_SIZE": "100MB", "FOREBAY_PORT": "0", "FOREBAY_IDLE_EXIT_S": "1"}
    asked = ("stage", origin.url("/lost/{00..02}.tar"), "out", "--map", "support.stage_work:slow", "--processes", "1", "--quiet")
    process = verb_process(environ, *asked, directory=tmp_path)
    wait_until((tmp_path / "out" / "_stage" / "spec.json").exists)
    first = read_run_file(environ)
    assert first is not None
    os.kill(first["pid"], signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 0, err
    assert "it is started again" in err
    assert f"the sidecar at {first['url']} is back" in err
    assert json.loads((tmp_path / "out" / "sizes.json").read_bytes()) == {f"0000{number}.tar": 70 for number in range(3)}
    wait_until(lambda: read_run_file(environ) is None)


@pytest.mark.usefixtures("through_sidecar")
def test_a_step_that_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Of its process moves no shard of a DST that was named from there."""
    put_shards(origin, "wander", (2, 2))
    monkeypatch.chdir(tmp_path)
    code, _, err = staged(
        sidecar, origin.url("/wander/{00..01}.tar"), "out", "--map", "support.stage_work:wanders", "--processes", "1"
    )  # fmt: skip
    assert code == 0, err
    assert set(files_of(tmp_path / "out")) >= {"00000.tar", "00001.tar"}


def staged(sidecar: Sidecar, *arguments: str) -> tuple[int, str, str]:
    """In this process."""
    done = invoke("stage", *arguments, "--url", sidecar.url, "--quiet", seams=Seams())
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.usefixtures("through_sidecar")
def test_a_dry_run_writes_nothing(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Three of five shards are read; what the whole would come to is told, the origin's bytes exactly."""
    put_shards(origin, "dry", (10, 10, 10, 10, 10))
    total = sum(len(origin.shards[f"/dry/0{number}.tar"].states[0].body) for number in range(5))
    src, dst = origin.url("/dry/{00..04}.tar"), str(tmp_path / "out")
    code, out, _ = staged(sidecar, src, dst, "--dry-run", "--json", "--samples-per-shard", "20", "--map", "support.stage_work:halves")
    told = json.loads(out)
    assert (code, told["tried"], told["samples"], told["shards"], told["egress_bytes"], told["failed"]) == (0, 3, 25, 2, total, [])
    assert not (tmp_path / "out").exists()
    assert [seen.headers.get("range") for seen in origin.seen("/dry/01.tar")] == ["bytes=0-0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://127.0.0.1:9/a.tar", "out", "--map", "nosuchstep"), "no ready-made step"),
        (("http://127.0.0.1:9/a.tar", "http://127.0.0.1:9/out"), "cannot write to http://"),
        (("http://127.0.0.1:9/a.tar", "http://127.0.0.1:9/a.tar", "out"), "twice"),
        (("http://127.0.0.1:9/a.tar", "out", "--samples-per-shard", "1", "--bytes-per-shard", "1MB"), "one of them"),
        (("/nowhere.txt", "out"), "neither a URL nor a file"),
        (("http://127.0.0.1:9/a.tar", "out", "--zstd"), None),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str | None
) -> None:
    """Exit code 2, in words, and no folder is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")
    done = invoke("stage", *arguments, seams=Seams())
    assert done.exit_code == ExitCode.CANNOT_BEGIN
    assert said is None or said in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("through_sidecar")
def test_an_absent_shard_is_named(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Before anything is written: the plan asks for all of them first."""
    put_shards(origin, "partly", (2,))
    code, _, err = staged(sidecar, origin.url("/partly/{00..01}.tar"), str(tmp_path / "out"))
    assert code == ExitCode.PART_FAILED
    assert "/partly/01.tar" in err
    assert "404" in err
    assert not (tmp_path / "out").exists()
