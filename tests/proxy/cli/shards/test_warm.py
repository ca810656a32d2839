"""forebay warm: what is sent, what is shown, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.progress import ProgressView

pytestmark = pytest.mark.another_python


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def asked(fake: FakeSidecar) -> list[tuple[dict[str, str], list[str]]]:
    """(headers, shards) of each request to warm."""
    return [(headers, json.loads(body)["shards"]) for _, path, headers, body in fake.requests if path == "/v1/warm"]


def test_patterns_commands_files_and_stdin(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """Every way of naming shards ends as origin URLs, in order, each once."""
    (tmp_path / "list").write_text("# training\n\ns3://b/list.tar\ns3://b/0.tar\n")
    result = invoke(
        "warm",
        "s3://b/{0..2}.tar",
        "pipe:aws s3 cp s3://b/cmd.tar -",
        "-",
        "--from",
        str(tmp_path / "list"),
        stdin="https://h.example/in.tar\n",
    )
    assert result.exit_code == 0
    shards = [shard for _, part in asked(sidecar) for shard in part]
    assert shards == ["s3://b/0.tar", "s3://b/1.tar", "s3://b/2.tar", "s3://b/cmd.tar", "s3://b/list.tar", "https://h.example/in.tar"]


def test_a_sidecar_that_ends_meanwhile_leaves_part_undone(sidecar: FakeSidecar) -> None:
    """What was warmed counts, the rest has failed: exit code 1. Nothing done at all is 2, as if there had been none."""
    stored = {"event": "shard", "shard": "s3://b/0.tar", "result": "stored", "bytes": 7, "error": ""}
    sidecar.warm_events = lambda shards: [stored, {"event": "cut"}]
    result = invoke("warm", "s3://b/{0..4}.tar", "--quiet")
    assert (result.exit_code, result.stdout) == (1, "1 shard stored, 0 already here, 0 without room, 4 failed; 0 B\n")
    assert "the other shards are not warmed" in result.stderr
    sidecar.warm_events = lambda shards: [{"event": "cut"}]
    result = invoke("warm", "s3://b/{0..4}.tar", "--quiet")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_headers_reach_their_host_only(sidecar: FakeSidecar) -> None:
    """One request for each host and credential; none of it in the URLs."""
    curl = "pipe:curl -s -H 'Authorization: Bearer {}' https://{}/a.tar"
    invoke("warm", curl.format("x", "one.example"), curl.format("x", "two.example"), "s3://b/a.tar")
    seen = [(headers.get("Authorization"), shards) for headers, shards in asked(sidecar)]
    assert seen == [("Bearer x", ["https://one.example/a.tar"]), ("Bearer x", ["https://two.example/a.tar"]), (None, ["s3://b/a.tar"])]


def test_large_sets_are_asked_for_in_parts(sidecar: FakeSidecar) -> None:
    """Totals run over all requests."""
    result = invoke("warm", "s3://b/{00000..11999}.tar", "--quiet")
    assert [len(shards) for _, shards in asked(sidecar)] == [10_000, 2000]
    assert result.stdout.startswith("12,000 shards stored")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://b/*.tar", "{000000..000999}"), ("ftp://h/a.tar", "unknown scheme 'ftp'"), ("az://c/a.tar", "blob's https URL"),
        ("s3:///a.tar", "s3:///a.tar"), ("s3://b/{1..3", "balance"),
        ("pipe:ais get x -", "pipe:ais: not a URL"), ("local.tar", "neither a URL nor a file"),
    ],
)  # fmt: skip
def test_what_names_no_shard_is_one_line(sidecar: FakeSidecar, text: str, words: str) -> None:
    """Nothing is asked of the sidecar; what would be right is said."""
    result = invoke("warm", "s3://b/good.tar", text)
    assert result.exit_code == 2
    assert words in result.stderr
    assert sidecar.requests == []


def test_no_secret_of_a_wrong_command_shows(sidecar: FakeSidecar) -> None:
    """The message repeats neither headers nor passwords nor queries."""
    for text in ("pipe:curl -H 'Authorization: hush' --frobnicate https://h/a", "ftp://user:hush@h/a?sig=hush"):
        assert "hush" not in invoke("warm", text).output


def test_a_shard_is_no_list(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """A local tar would be read as URLs: it says how a shard of a NAS is named."""
    (tmp_path / "a.tar").write_bytes(b"a.txt".ljust(512, b"\0"))
    result = invoke("warm", str(tmp_path / "a.tar"))
    assert (result.exit_code, f"write file://{tmp_path}/a.tar" in result.stderr) == (2, True)


def test_elsewhere_than_on_a_terminal_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a line a shard."""
    now = [0.0]
    view = ProgressView(quiet=False, as_json=False, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        view.shards(second, 100, second * 10**6)
    assert capsys.readouterr().err.splitlines() == [
        "forebay: 5 of 100 shards, 5.0 MB, 1.0 MB/s, about 100 MB in all, 1 min 35 s left",
        "forebay: 10 of 100 shards, 10.0 MB, 1.0 MB/s, about 100 MB in all, 1 min 30 s left",
    ]


def test_no_room_is_named_and_no_failure(sidecar: FakeSidecar) -> None:
    """Exit code 0; the first of them by name, the others by number."""
    end = {"event": "end", "stored": 0, "present": 0, "no_room": 12, "failed": 0, "bytes": 0}
    full = {"event": "shard", "result": "no-room", "bytes": 0, "error": ""}
    sidecar.warm_events = lambda shards: [*({**full, "shard": shard} for shard in shards), end]
    result = invoke("warm", "s3://b/{00..11}.tar", "--quiet")
    assert result.exit_code == 0
    assert next(line for line in result.stderr.splitlines() if "no room: " in line).endswith("no room: s3://b/00.tar")
    assert "s3://b/09.tar" in result.stderr
    assert "s3://b/10.tar" not in result.stderr
    assert "12 shards found no room (--json names the other 2 too)" in result.stderr
    assert "--cache-size" in result.stderr
    lines = invoke("warm", "s3://b/{00..11}.tar", "--json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["shard"] * 12 + ["end"]


def test_an_argument_that_is_a_file_is_a_list(sidecar: FakeSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative or absolute, as with --from; a URL never is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls").write_text("s3://b/{0..1}.tar\n")
    (tmp_path / "more.txt").write_text("# more\ns3://b/2.tar\n")
    assert invoke("warm", "s3://b/9.tar", "urls", str(tmp_path / "more.txt")).exit_code == 0
    shards = [shard for _, part in asked(sidecar) for shard in part]
    assert shards == ["s3://b/9.tar", "s3://b/0.tar", "s3://b/1.tar", "s3://b/2.tar"]


def failing(count: int, result: str = "stored") -> Any:
    """A sidecar's events: the first ``count`` shards fail alike, the others end with ``result``."""
    cause, step = "the origin answered 404", "check the URL"

    def events(shards: list[str]) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = [
            {
                "event": "shard", "shard": shard, "result": "failed", "bytes": 0, "error": f"shard {shard}: {cause}", "cause": cause,
                "next_step": step,
            }
            for shard in shards[:count]
        ]  # fmt: skip
        told += [{"event": "shard", "shard": shard, "result": result, "bytes": 1, "error": ""} for shard in shards[count:]]
        rest = len(shards) - count
        ends = {"stored": 0, "present": 0, "no_room": 0, result.replace("-", "_"): rest}
        return [*told, {"event": "end", **ends, "failed": count, "bytes": 1}]

    return events


def test_equal_failures_are_told_once_with_their_next_step_and_counted(sidecar: FakeSidecar) -> None:
    """Two hundred wrong URLs are two lines: the first as it happens, all of them at the end."""
    sidecar.warm_events = failing(200)
    result = invoke("warm", "s3://b/{000..219}.tar", "--quiet")
    first, all_of_them = result.stderr.splitlines()
    assert first == "forebay: failed: shard s3://b/000.tar: the origin answered 404; check the URL"
    assert all_of_them.startswith("forebay: 200 shards failed alike (s3://b/000.tar, s3://b/001.tar, s3://b/002.tar and 197 more")
    assert all_of_them.endswith("the origin answered 404; check the URL")
    assert (result.exit_code, "20 shards stored, 0 already here, 0 without room, 200 failed" in result.stdout) == (1, True)


def test_ctrl_c_says_how_to_go_on(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it was, and that the same command goes on."""

    def interrupted(self: object, *_: object) -> Iterator[dict[str, Any]]:
        yield {"event": "shard", "shard": "s3://b/0.tar", "result": "stored", "bytes": 7, "error": ""}
        raise KeyboardInterrupt

    monkeypatch.setattr(SidecarClient, "warm", interrupted)
    result = invoke("warm", "s3://b/{0..4}.tar", "--quiet")
    assert result.exit_code == 130
    assert "stopped: 1 of 5 shards are done; what is stored stays, and the same command goes on from there" in result.stderr


@pytest.mark.parametrize("verb", ["warm", "index"])
def test_an_empty_list_is_named(sidecar: FakeSidecar, tmp_path: Path, verb: str) -> None:
    """A person did name something."""
    (tmp_path / "empty.txt").write_text("# nothing\n")
    result = invoke(verb, str(tmp_path / "empty.txt"))
    assert (result.exit_code, f"{tmp_path}/empty.txt holds no URL" in result.stderr) == (2, True)
