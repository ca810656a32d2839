"""One URL, several contents: a request's header or a parameter chooses. Nobody is given what the origin shows to somebody else."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

import pytest
from support.refusals import refused
from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running, small_segments, wait_until

_LED = "/variant/"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@functools.lru_cache(maxsize=8)
def variant(value: str, size: int) -> bytes:
    """The bytes that ``value`` chooses; "" for a request without."""
    return random.Random(value).randbytes(size)


@functools.lru_cache(maxsize=8)
def _digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Choosing(Fault):
    """A request's header, or a parameter of its query, chooses the bytes; all variants have one length and one date.

    ``by``: the header that chooses, or ``?name``. ``strong``: each variant has an ETag. ``vary``: the lines that are sent.

    ``leads``: by a redirect, which alone has the ``vary``; an ETag is then of date and length, as nginx makes it.
    """

    def __init__(self, by: str, *, strong: bool, vary: tuple[str, ...], size: int) -> None:
        self.base = ""
        self.size = size
        self.leads = False
        self._serial = 0
        self.becomes(by, strong=strong, vary=vary)

    def becomes(self, by: str, *, strong: bool, vary: tuple[str, ...]) -> None:
        """Another shard, chosen otherwise."""
        self.by, self.strong, self.vary = by, strong, vary
        self.bodies: list[str] = []  # what chose each body of more than one byte
        self._serial += 1

    @property
    def shard(self) -> str:
        return f"{self.base}/set/{self._serial}.tar"

    def answer(self, call: Call) -> Answer:
        seen, by = call.seen, self.by
        value = dict(parse_qsl(seen.query)).get(by[1:], "") if by.startswith("?") else seen.headers.get(by.lower(), "")
        vary = tuple(("Vary", line) for line in self.vary)
        if seen.path.startswith(_LED):
            value, vary = unquote(seen.path[len(_LED) :]), ()
        elif self.leads:
            return call.honest(status=302, etag=None, headers=(("Location", _LED + quote(value, safe="")), *vary))
        data = variant(value, self.size)
        etag = f'"5627-{len(data):x}"' if self.leads else f'"{_digest(data)}"'
        named = {"etag": etag if self.strong else None, "last_modified": DATE, "conditions": self.strong}
        answer = call.honest(status=None, body=data, headers=vary, **named)
        if seen.method == "GET" and answer.end - answer.first > 1:
            self.bodies.append(value)
        return answer


@contextmanager
def choosing_origin(by: str, *, strong: bool, vary: tuple[str, ...], size: int = 5000) -> Iterator[Choosing]:
    """One that listens, for the length of a ``with``."""
    script = Choosing(by, strong=strong, vary=vary, size=size)
    with in_a_thread(ScriptedOrigin(anything=script)) as origin:
        script.base = origin.base
        yield script


PLENTY = ("--cache-size", "200MB")
VALUES = ("", "u1", "u2")


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, Choosing]]:
    """One sidecar and one origin for many shards."""
    with (
        choosing_origin("", strong=True, vary=()) as origin,
        running(tmp_path_factory.mktemp("lasting"), *PLENTY, allow=[origin.base]) as sidecar,
    ):
        yield sidecar, origin


def get(sidecar: Sidecar, origin: Choosing, value: str, headers: dict[str, str] | None = None, **spans: str) -> bytes:
    """What the sidecar gives to a request that ``value`` chooses for."""
    by = origin.by
    url = origin.shard + (f"?{by[1:]}={value}" if by.startswith("?") and value else "")
    sent = {by: value} if value and not by.startswith("?") else {}
    request = urllib.request.Request(sidecar.proxied(url), headers={**sent, **(headers or {}), **spans})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def is_right(sidecar: Sidecar, origin: Choosing, values: Sequence[str]) -> bool:
    return all(get(sidecar, origin, value) == variant(value, origin.size) for value in values)


@pytest.mark.parametrize("strong", [True, False], ids=["strong ETag", "date and length"])
@pytest.mark.parametrize("by", ["X-Split", "Authorization", "Cookie", "?token", "?access_token", "?api_key", "?Authorization"])
@pytest.mark.parametrize("values", [VALUES, ("u1", "u2", ""), ("u2", "", "u1")], ids=["nobody first", "nobody last", "nobody between"])
def test_each_variant_is_its_own(lasting: tuple[Sidecar, Choosing], by: str, strong: bool, values: Sequence[str]) -> None:
    """Whoever comes first, with all they have in common; and each is fetched once: they do not push each other out."""
    sidecar, origin = lasting
    origin.becomes(by, strong=strong, vary=() if by.startswith("?") else (by,))
    held = is_right(sidecar, origin, [*values, *values, *reversed(values)])
    refused(f"variants: {by} of another", held=held)
    assert sorted(origin.bodies) == sorted(values)


@pytest.mark.parametrize("by", ["X-Split", "?token"])
@pytest.mark.parametrize("strong", [True, False])
def test_variants_outlive_the_process(tmp_path: Path, by: str, strong: bool) -> None:
    """Rows keep a digest of what chose them, not what chose them: each finds its own again."""
    with choosing_origin(by, strong=strong, vary=() if by.startswith("?") else (by,)) as origin:
        with running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar:
            assert is_right(sidecar, origin, VALUES)
            sidecar.wait_complete(len(VALUES))
        with running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar:
            assert is_right(sidecar, origin, (*VALUES, *VALUES))
        assert sorted(origin.bodies) == sorted(VALUES)


@pytest.mark.parametrize("by", ["X-Split", "Authorization", "Cookie"])
@pytest.mark.parametrize("strong", [True, False], ids=["ETags of date and length", "date and length"])
def test_a_header_may_choose_where_a_redirect_leads(tmp_path: Path, by: str, strong: bool) -> None:
    """Only the redirect says Vary then, and it is remembered; a validator tells versions of one resource apart, and these are several."""
    with choosing_origin(by, strong=strong, vary=(by,)) as origin:
        origin.leads = True
        for _ in range(2):
            with running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar:
                held = is_right(sidecar, origin, (*VALUES, *reversed(VALUES)))
                refused(f"variants: {by} chooses where a redirect leads", held=held)
                sidecar.wait_complete(len(VALUES))
        assert sorted(origin.bodies) == sorted(VALUES)


def test_a_name_of_vary_may_stand_on_any_line(tmp_path: Path) -> None:
    """In any case, beside others."""
    lines = ("Accept-Encoding", "Origin , x-SPLIT", "User-Agent")
    with (
        choosing_origin("X-Split", strong=False, vary=lines) as origin,
        running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar,
    ):
        refused("variants: a second Vary line", held=is_right(sidecar, origin, (*VALUES, *VALUES)))


def test_headers_that_are_never_sent_choose_nothing(tmp_path: Path) -> None:
    """``Vary: Accept-Encoding`` is what most CDNs say: a date and a length prove the same to another credential, and it is fetched once."""
    with choosing_origin("?none", strong=False, vary=("Accept-Encoding, Origin", "User-Agent")) as origin:
        with running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar:
            for who in ("a", "b"):
                agent = {"Authorization": who, "Accept-Encoding": who, "Origin": "http://127.0.0.1", "User-Agent": who}
                assert get(sidecar, origin, "", {name: text for name, text in agent.items() if name != "Origin"}) == variant(
                    "", origin.size
                )
        assert len(origin.bodies) == 1


def test_what_varies_on_everything_is_passed_on_and_not_stored(tmp_path: Path) -> None:
    """``Vary: *``: complete and right each time, larger than a segment too; counted, said once, and nothing of it stays."""
    with (
        choosing_origin("X-Split", strong=True, vary=("*",), size=9 << 20) as origin,
        running(tmp_path, *PLENTY, allow=[origin.base]) as sidecar,
    ):
        held = is_right(sidecar, origin, ("", "", "u1", "u2", "u1"))
        wait_until(lambda: not sidecar.shards())
        refused("variants: Vary: * stored", held=held)
        assert sorted(set(origin.bodies)) == ["", "u1", "u2"]
        assert len(origin.bodies) >= 5, "each of them asked"
        assert sidecar.metric("forebay_not_storable_total") >= 5
        assert sidecar.log_text().count("Vary: *") == 1


def test_many_at_once_each_get_their_own(tmp_path: Path) -> None:
    """Four credentials by turns, eight at a time, of more than a segment: nobody is told that the shard keeps changing."""
    for strong in (True, False):
        with choosing_origin("Authorization", strong=strong, vary=("Authorization",), size=9 << 17) as origin:
            (tmp_path / str(strong)).mkdir()
            how = {"allow": [origin.base], "program": small_segments(1 << 20)}
            with running(tmp_path / str(strong), *PLENTY, **how) as sidecar, ThreadPoolExecutor(8) as pool:
                wishes = ["u1", "u2", "", "u3"] * 10
                got = list(pool.map(lambda value: get(sidecar, origin, value), wishes))
            refused("variants: a crowd", held=all(data == variant(value, origin.size) for value, data in zip(wishes, got, strict=True)))


def test_what_is_fetched_ahead_is_of_the_variant_that_is_read(tmp_path: Path) -> None:
    """A plan with a credential fetches nothing into what others are shown, though date and length are the same."""
    size = 20 << 17
    with choosing_origin("X-Split", strong=False, vary=("X-Split",), size=size) as origin:
        with running(tmp_path, *PLENTY, allow=[origin.base], program=small_segments(1 << 20)) as sidecar:
            head = get(sidecar, origin, "", Range="bytes=0-99", **{"Forebay-Reader": "j/0/0/1.1"})
            assert head == variant("", size)[:100]
            url = f"{sidecar.url}/v1/plans/j/1/0/2.1"
            body = json.dumps({"shards": [origin.shard]}).encode()
            urllib.request.urlopen(urllib.request.Request(url, body, {"X-Split": "u1"}, method="PUT"), timeout=120).close()
            wait_until(lambda: "u1" in origin.bodies)
            held = get(sidecar, origin, "u1", {"Forebay-Reader": "j/1/0/2.1"}) == variant("u1", size)
            held = held and get(sidecar, origin, "") == variant("", size) and get(sidecar, origin, "u1") == variant("u1", size)
        refused("variants: fetched ahead into another's", held=held)
