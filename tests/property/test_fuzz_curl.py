"""Commands that we take over, against the real curl: it asks for the URL, and sends the headers, that we understood."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_proxy.server.http.framing import credential_headers
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

MALFORMED = 3  # curl's exit code for a URL it cannot read

pytestmark = pytest.mark.needs("curl", "sh")


class Witness(BaseHTTPRequestHandler):
    """Writes down what it is asked."""

    asked: list[tuple[str, list[tuple[str, str]]]] = []  # noqa: RUF012 -- the class is made anew by nobody

    def do_GET(self) -> None:
        self.asked.append((self.requestline.split(" ")[1], self.headers.items()))  # ``path`` has its first slashes folded
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def witness() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Witness)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


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
def test_curl_asks_for_what_we_understood(witness: str, flags: list[str], path: str, quote: str, userinfo: str, tail: str) -> None:
    """Wherever we understand the command at all: same target, same credential headers."""
    url = f"http://{userinfo}{witness}/{path}"
    command = f"curl {' '.join(flags)} {quote.format(url)}{tail}"
    try:
        source = parse_source(f"pipe:{command}")
    except InvalidShardUrl:
        return
    if not isinstance(source, Source):
        return
    Witness.asked.clear()
    done = subprocess.run(
        ["sh", "-c", f"{command} --max-time 10 >/dev/null" if not tail else command],
        capture_output=True,
        check=False,
        timeout=30,
        cwd="/tmp",
    )
    if done.returncode == MALFORMED and not Witness.asked:
        return  # curl itself refuses it, and so fails everywhere
    assert len(Witness.asked) == 1, (command, done.stderr)
    target, headers = Witness.asked[0]
    meant = source.url.path + (f"?{source.url.query}" if source.url.query else "")
    # http.server reads a request line as Latin-1, whatever its bytes are.
    assert unescaped(target.encode("latin-1")) == unescaped(meant.encode()), command
    sent = {name.lower(): value for name, value in credential_headers(headers)}
    assert sent == {name.lower(): value for name, value in source.headers}, command


def unescaped(target: bytes) -> list[bytes]:
    """Octets that one of the two writes as they are and the other with a percent sign are the same; slashes and ``?`` are not."""
    path, _, query = target.partition(b"?")
    return [unquote_to_bytes(part) for part in (*path.split(b"/"), query)]


def test_the_quoting_of_these_tests_is_the_shells() -> None:
    """Or they would compare nothing."""
    assert shlex.split("curl 'http://h/a b'") == ["curl", "http://h/a b"]
