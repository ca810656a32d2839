"""Commands that we take over, against the real curl: it asks for the URL, and sends the headers, that we understood."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.scripted_answers import Change
from support.scripted_origin import ScriptedOrigin, in_a_thread

from forebay_proxy.server.http.framing import credential_headers
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

MALFORMED = 3  # curl's exit code for a URL it cannot read

pytestmark = pytest.mark.needs("curl", "sh")


@pytest.fixture(scope="module")
def witness() -> Iterator[ScriptedOrigin]:
    """Writes down what it is asked."""
    with in_a_thread(ScriptedOrigin(anything=Change(status=200, body=b"x"))) as origin:
        yield origin


PATH = st.text("ab./%20-~_:@,+=&?!*()'{}[]#\\ é", min_size=1, max_size=16)
FLAGS = st.lists(
    st.sampled_from([
        "-s", "-L", "-f", "-sL", "-fsSL", "-g", "--retry 3", "-H 'X-Amz-A: b'", "-H 'Authorization: Bearer t'", "-u u:p", "-u 'u:p w'",
        "-b a=b", "-H 'Accept: */*'",
        "--oauth2-bearer tok", "-H 'Cookie: c=d'", "-H X-B:c", '-H "X-C: d e"', "-H 'X-D:'", "-H 'X-E;'", "-4", "-G", "-X GET", "--url",
        "-H 'X-Forwarded-For: 1'", "-H 'Range: bytes=0-1'",
    ]),
    max_size=5,
)  # fmt: skip
QUOTE = st.sampled_from(["'{}'", '"{}"', "{}"])


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(FLAGS, PATH, QUOTE, st.sampled_from(["", "u:p@", "u%40x:p@"]), st.sampled_from(["", " 2>/dev/null", " < /dev/null"]))
def test_curl_asks_for_what_we_understood(
    witness: ScriptedOrigin, flags: list[str], path: str, quote: str, userinfo: str, tail: str
) -> None:
    """Wherever we understand the command at all: same target, same credential headers."""
    url = f"http://{userinfo}127.0.0.1:{witness.port}/{path}"
    command = f"curl {' '.join(flags)} {quote.format(url)}{tail}"
    try:
        source = parse_source(f"pipe:{command}")
    except InvalidShardUrl:
        return
    if not isinstance(source, Source):
        return
    witness.requests.clear()
    done = subprocess.run(
        ["sh", "-c", f"{command} --max-time 10 >/dev/null" if not tail else command],
        capture_output=True,
        check=False,
        timeout=30,
        cwd="/tmp",
    )
    if done.returncode == MALFORMED and not witness.requests:
        return  # curl itself refuses it, and so fails everywhere
    assert len(witness.requests) == 1, (command, done.stderr)
    (seen,) = witness.requests
    meant = source.url.path + (f"?{source.url.query}" if source.url.query else "")
    assert unescaped(seen.target.encode("latin-1")) == unescaped(meant.encode()), command
    sent = {name.lower(): value for name, value in credential_headers(seen.headers.items())}
    assert sent == {name.lower(): value for name, value in source.headers}, command


def unescaped(target: bytes) -> list[bytes]:
    """Octets that one of the two writes as they are and the other with a percent sign are the same; slashes and ``?`` are not."""
    path, _, query = target.partition(b"?")
    return [unquote_to_bytes(part) for part in (*path.split(b"/"), query)]


def test_the_quoting_of_these_tests_is_the_shells() -> None:
    """Or they would compare nothing."""
    assert shlex.split("curl 'http://h/a b'") == ["curl", "http://h/a b"]
