"""docs/protocol.md: every example is sent to a live sidecar, and answered as the page says."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running, wait_until
from support.tarmaking import hand_header

from forebay_proxy.policy.plans.reader_plan import MOST_READERS, MOST_SHARDS
from forebay_proxy.policy.plans.registry import SILENCE_S
from forebay_proxy.server.http.plan_route import MOST_ROWS, PLAN_BODY_BYTES
from forebay_proxy.telemetry.meter_board import MOST_METERS
from forebay_proxy.wire.protocol.meter import MAX_BODY_BYTES

PAGE = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
STORE = "store.example"  # what the page calls the origin
ANY = "…"


@dataclass(frozen=True)
class Example:
    """``request`` and ``answer`` as (first line, headers, body)."""

    request: tuple[str, dict[str, str], str]
    answer: tuple[str, dict[str, str], str]


def _message(text: str) -> tuple[str, dict[str, str], str]:
    head, _, body = text.strip("\n").partition("\n\n")
    first, *lines = head.splitlines()
    return first, dict(line.split(": ", 1) for line in lines), body


def examples() -> list[Example]:
    """All blocks of the page, in their order."""
    return [Example(*map(_message, block.split("\n---\n"))) for block in re.findall(r"```http\n(.*?)```", PAGE, re.DOTALL)]


@contextmanager
def store() -> Iterator[ScriptedOrigin]:
    """An origin with the eight shards of the page, on a loop of its own."""
    origin = ScriptedOrigin()
    for number in range(8):
        origin.put(f"/train/{number:03}.tar", hand_header(b"0.bin", 8704) + ramp(9728), etag=f'"v{number}"')
    with in_a_thread(origin):
        yield origin


def ask(sidecar: Sidecar, request: tuple[str, dict[str, str], str]) -> tuple[int, http.client.HTTPMessage, str]:
    """The answer of a connection of its own."""
    (first, headers, body) = request
    method, target = first.split(" ")
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=120)
    try:
        connection.request(method, target, body.encode() or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode("latin-1")
    finally:
        connection.close()


def agrees(expected: Any, found: Any) -> bool:
    """Equal, but for what the page leaves open; keys may not be missing and not come on top."""
    if expected == ANY:
        return True
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(agrees(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(agrees, expected, found))
    return bool(expected == found)


def values(text: str) -> list[Any]:
    """One JSON document, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def test_every_example_is_answered_as_the_page_says(tmp_path: Path) -> None:
    """Status, the headers that are shown, and the body where one is; in the order of the page, at one sidecar."""
    shown = examples()
    assert len(shown) > 9
    with store() as origin, running(tmp_path, "--cache-size", "200MB", allow=[origin.base]) as sidecar:
        place = origin.base.removeprefix("http://")
        for example in shown:
            first, headers, sent = ((text.replace(STORE, place) if isinstance(text, str) else text) for text in example.request)
            wanted, wanted_headers, body = example.answer
            status, got, text = ask(sidecar, (first, headers, sent))  # type: ignore[arg-type]
            wait_until(lambda: not sidecar.status()["cache"]["in_flight"])  # its last bytes were readable before they were stored
            assert str(status) == wanted, (first, text)
            assert got["Server"] == "forebay", first
            for name, value in wanted_headers.items():
                assert agrees(value, got[name]), (first, name, got[name])
            if wanted_headers.get("Content-Type", "").startswith("application/"):
                assert agrees(values(body.replace(STORE, place)), values(text)), (first, text)
            elif body:
                assert text.strip() == body, first


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("{} readers, two million entries", f"{MOST_READERS:,}"), ("at most {} MiB", PLAN_BODY_BYTES >> 20),
        ("{} s after the reader", int(SILENCE_S)), ("at most {} rows", MOST_ROWS),
        ("A body has {} KiB at most", MAX_BODY_BYTES >> 10), ("totals of {} processes", MOST_METERS),
    ],
)  # fmt: skip
def test_the_bounds_are_those_of_the_code(words: str, number: object) -> None:
    """Numbers in prose too."""
    assert words.format(number) in PAGE
    assert MOST_SHARDS == 1 << 21


def test_the_page_shows_every_path() -> None:
    """No path of the sidecar is missing, but for its status page's own files."""
    source = (Path(__file__).parents[1] / "proxy" / "forebay_proxy" / "server" / "http" / "admin_routes.py").read_text(encoding="utf-8")
    paths = set(re.findall(r'"(/(?:v1/)?[a-z]+)/?": \{', source))
    assert {"/readyz", "/v1/plans", "/v1/warm"} <= paths
    assert [path for path in paths if path not in PAGE] == []
