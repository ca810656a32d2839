"""``forebay status --watch``: what fits a screen, and the keys."""

from __future__ import annotations

import os
import pty
import select
import shlex
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_sidecar import FakeSidecar
from support.sidecar import environment

from forebay_proxy.cli.sidecars.status import _drawn
from forebay_proxy.cli.sidecars.watch import fitted, screen, shortened

VERDICT = {
    "severity": "act",
    "sentence": "training waited 62 % of the last minute",
    "do": "see why",
    "line": "forebay check 's3://b/7.tar'",
}
HEAD = ("reader", "shard", "waits now for")


def texts(*given: Any, **how: Any) -> list[str]:
    return [line.plain for line in screen(*given, **how)]


def test_the_middle_of_a_name_is_cut() -> None:
    """So two names that differ at their ends stay different."""
    names = [f"http://127.0.0.1:35299/data/shard-{number:06d}.tar" for number in (7, 8)]
    short = [shortened(name, 20) for name in names]
    assert short[0] != short[1]
    assert all(len(name) == 20 and "…" in name and name.endswith(".tar") and name.startswith("http") for name in short)
    assert shortened("short", 20) == "short"


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=9), st.text(max_size=200)), min_size=1, max_size=9), st.integers(20, 200))
def test_no_line_is_too_wide(rows: list[tuple[str, ...]], width: int) -> None:
    assert all(len(line) <= width for line in fitted(rows, width))


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(10, 60))
def test_a_screen_is_never_left(sizes: list[int], height: int) -> None:
    """Whatever there is of each table: rows that are not shown are counted."""
    tables = [(f"table {at}", [HEAD, *[("a", "b", "c")] * size]) for at, size in enumerate(sizes)]
    lines = texts(VERDICT, "head", tables, ["totals"], 80, height)
    assert len(lines) <= height
    assert lines[0].startswith("ACT")
    shown, counted = (
        lines.count("a       b      c"),
        sum(int(line.split()[1]) for line in lines if line.startswith("… ") and "more" in line),
    )
    if not any("no room" in line for line in lines) and height >= 40:
        assert shown + counted == sum(sizes)


def test_a_small_screen_shows_something_of_each_table() -> None:
    """80 x 24: the verdict, what to type, a row of each, and how many more."""
    tables = [
        (name, [HEAD, *[(f"{name}-{row}", "s3://b/a.tar", "origin") for row in range(9)]]) for name in ("ranks", "readers", "origins")
    ]
    lines = texts(VERDICT, "ready", tables, [], 80, 24)
    assert lines[:4] == ["ACT  training waited 62 % of the last minute", "do: see why", "type: forebay check 's3://b/7.tar'", "ready"]
    assert sum("more rows" in line for line in lines) == 3
    assert len(lines) <= 24


def test_a_command_is_never_cut_and_a_shell_reads_it_whole() -> None:
    """Not even within quotes, on a narrow screen."""
    command = "forebay stop && forebay serve --cache-dir '/a b/with spaces  and more of them' --set 's3://b/{0..9}.tar' --cache-size 24MB"
    verdict = {"severity": "act", "sentence": "x", "do": "", "line": command}
    for width in (40, 60, 80):
        lines = [line.plain for line in screen(verdict, "", [], [], width, 24)]
        typed = "\n".join(lines[next(at for at, line in enumerate(lines) if line.startswith("type: ")) :]).rstrip()
        assert shlex.split(typed.replace("\\\n", "")) == ["type:", *shlex.split(command)]


def test_what_finds_no_room_is_said() -> None:
    """Tables have equal parts of the screen; those without a row are named, and a sentence has two lines at most."""
    tables = [(name, [HEAD, *[(f"{name}-{row}", "s3://b/a.tar", "origin") for row in range(9)]]) for name in ("ranks", "readers", "plans")]
    lines = texts({**VERDICT, "sentence": "training waits and " * 30}, "ready", tables, ["cache"], 80, 14)
    assert (lines[1][-1], lines[2]) == ("…", "do: see why")
    assert (lines[-1].startswith("… no room for: "), len(lines) <= 14) == (True, True)
    shown = [
        sum(line.startswith(name) for line in texts(VERDICT, "ready", tables, ["cache"], 80, 24))
        for name in ("ranks-", "readers-", "plans-")
    ]
    assert max(shown) - min(shown) <= 1


def stands(waiting: str) -> dict[str, Any]:
    """A sidecar's status in an outage: fourteen readers wait, behind two that read."""
    readers = [
        {
            "reader": f"vm-14836-650d3b14/{n}/1/14905.1",
            "shard": f"http://127.0.0.1:35299/err/train-{n:06d}.tar",
            "position_bytes": 5 * 10**6,
            "length_bytes": 10**9,
            "waited_s": 29.9,
            "waiting_for": waiting if n > 1 else "",
        }
        for n in range(16)
    ]
    verdict = {**VERDICT, "sentence": "14 readers wait for http://127.0.0.1:35299, 30 s by now: the origin answered 503; it is asked again"}
    lately = {"wall_s": 60.0, "stall_s": {"origin": 55.0, "decode": 5.0}, "steps": 3, "samples": 9, "reader_wait_s": {}}
    rank = {"job": "vm-14836-650d3b14", "rank": "0", "batch_size": 8, "slowest_worker": 1, "slowest_shard": readers[3]["shard"]}
    row = {**rank, "skipped": 0, "lately": lately}
    with FakeSidecar() as fake:
        return {**fake.status, "verdict": verdict, "readers": readers, "meters": [row], "plans": [], "state": "ready", "uptime_s": 9.0}


@pytest.mark.parametrize(("width", "height", "rows"), [(80, 24, 10), (40, 10, 1), (60, 16, 4)])
def test_what_is_waited_for_is_read_at_every_size(width: int, height: int, rows: int) -> None:
    """The verdict, the line to type, then readers that wait with the code, and how many more there are."""
    status = stands("http://127.0.0.1:35299: the origin answered 503; it is asked again")
    lines = [line.plain for line in _drawn(status, width, height, 0)]
    assert (len(lines) <= height, max(map(len, lines)) <= width) == (True, True)
    heading = next(at for at, line in enumerate(lines) if "waits now for" in line)
    assert "forebay check 's3://b/7.tar'" in " ".join(lines[:heading])
    waiting = lines[heading + 1 : heading + 1 + rows]
    assert all("  503" in line for line in waiting), lines
    assert len(set(waiting)) == rows  # names stay different
    assert any("more row" in line for line in lines)
    assert lines[-1].startswith("… no room for: ")


def test_keys_on_a_terminal(tmp_path: Path) -> None:
    """s sorts the readers, q ends it with exit code 0 and gives the terminal back."""
    readers = [
        {
            "reader": f"job/0/{n}/7.1",
            "shard": f"s3://b/{n}.tar",
            "position_bytes": 0,
            "length_bytes": None,
            "waited_s": float(n),
            "waiting_for": "",
        }
        for n in range(2)
    ]
    with FakeSidecar() as fake:
        fake.status = {**fake.status, "verdict": VERDICT, "readers": readers}
        pid, descriptor = pty.fork()
        if not pid:  # the terminal's program
            environ = environment(tmp_path, TERM="xterm", COLUMNS="100", LINES="30", FOREBAY_URL=fake.url)
            os.execve(sys.executable, [sys.executable, "-m", "forebay_proxy", "top"], environ)
        try:
            seen = until(descriptor, "readers that wait first")
            os.write(descriptor, b"s")
            seen = until(descriptor, "longest wait first")
            after = seen[seen.rindex("longest wait first") :] + until(descriptor, "cache")
            assert after.index("job/0/1/7.1") < after.index("job/0/0/7.1")
            os.write(descriptor, b"q")
            until(descriptor, None)
            assert termios.tcgetattr(descriptor)[3] & termios.ICANON
        finally:
            os.close(descriptor)
            _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def until(descriptor: int, text: str | None) -> str:
    """What the terminal was given until ``text``; None: until its end."""
    seen, end = "", time.monotonic() + 60
    while text is None or text not in seen:
        assert time.monotonic() < end, seen
        if not select.select([descriptor], [], [], 1)[0]:
            continue
        try:
            got = os.read(descriptor, 1 << 16)
        except OSError:  # the other side is gone
            got = b""
        if not got:
            assert text is None, seen
            break
        seen += got.decode("utf-8", "replace")
    return seen


@pytest.mark.parametrize("severity", ["fine", "look", "act"])
def test_severity_is_a_word_and_a_colour(severity: str) -> None:
    first = screen({**VERDICT, "severity": severity}, "", [], [], 80, 24)[0]
    assert first.plain.startswith({"fine": "OK", "look": "LOOK", "act": "ACT"}[severity])
    assert str(first.style) == {"fine": "bold green", "look": "bold yellow", "act": "bold red"}[severity]
