"""What a log line may hold, line by line."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.logs import SafeFormatter, scrubbed

SECRET = "S3CRET"


def line(logger: str, text: str, *arguments: object, error: BaseException | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord(logger, logging.WARNING, "f.py", 1, text, arguments, info)
    return SafeFormatter("forebay: %(levelname)s %(message)s").format(record)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shard https://h/a?sig=S3CRET: gone", "shard https://h/a gone"),
        ("to http://user:S3CRET@h:80/a.", "to http://h:80/a."),
        ("'https://h/?S3CRET' and s3://b/k?region=x", "'https://h/' and s3://b/k?region=x"),
        ("HTTPS://H/#S3CRET", "HTTPS://H/"),
        ("plain words, 100 % of them?", "plain words, 100 % of them?"),
    ],
)
def test_queries_and_userinfo_are_left_out(text: str, shown: str) -> None:
    """Wherever in a line they stand; the rest stays."""
    assert scrubbed(text) == shown
    assert SECRET not in line("forebay", "%s", text)


@given(st.text(max_size=30), st.text("abc/:@?#%&=.", max_size=20))
def test_scrubbing_is_done_once(text: str, url: str) -> None:
    """Nothing appears by scrubbing again."""
    once = scrubbed(f"{text} http://u:p@h/{url}?{text}")
    assert scrubbed(once) == once


@pytest.mark.parametrize("logger", ["forebay", "asyncio", "aiohttp.server"])
def test_an_exception_is_frames_and_types(logger: str) -> None:
    """No message of it, of its causes or of its parts; where it came from stays."""
    inner = raised(ValueError(SECRET))
    outer = RuntimeError(SECRET)
    outer.__cause__ = inner
    for error in (raised(outer), raised(ExceptionGroup(SECRET, [inner, outer]))):
        shown = line(logger, "a fault", error=error)
        assert SECRET not in shown
        assert type(error).__name__ in shown
        assert "ValueError" in shown
        assert "test_logs.py" in shown


def test_others_are_told_by_their_first_line() -> None:
    """asyncio's complaints go on with a repr of the exception."""
    told = f"Task exception was never retrieved\nfuture: <Task exception=InvalidURL('http://h/?{SECRET}')>"
    assert line("asyncio", told) == "forebay: WARNING asyncio: Task exception was never retrieved"
    assert SECRET not in line("botocore", f"Retry needed: EndpointConnectionError('{SECRET}')")


async def test_an_asyncio_complaint_holds_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """The real one, through the loop's own handler."""

    async def fail() -> None:
        raise RuntimeError(SECRET)

    task = asyncio.ensure_future(fail())
    await asyncio.wait([task])
    asyncio.get_running_loop().call_exception_handler({"message": "it failed", "exception": task.exception(), "future": task})
    shown = [SafeFormatter("forebay: %(levelname)s %(message)s").format(record) for record in caplog.records]
    assert shown
    assert SECRET not in "".join(shown)


def test_what_nobody_caught_shows_no_message() -> None:
    """At the end of the process, and of a thread."""
    code = (
        "import threading; from forebay_proxy.core import logs; logs.set_up('debug')\n"
        f"thread = threading.Thread(target=lambda: 1 / int('{SECRET}')); thread.start(); thread.join()\n"
        f"raise RuntimeError('{SECRET}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 1
    assert SECRET not in done.stderr.replace(code, "")
    assert "ValueError" in done.stderr
    assert "RuntimeError" in done.stderr


def test_the_sdk_keeps_quiet_at_debug() -> None:
    """At debug it prints what it signs."""
    code = (
        "import logging; from forebay_proxy.core import logs; logs.set_up('debug')\n"
        "logging.getLogger('botocore.auth').debug('S3CRET'); logging.getLogger('forebay').debug('ours')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert re.fullmatch(r"forebay: \d{4}-\d\d-\d\d [\d:,]+ DEBUG ours\n", done.stderr)


def test_json_lines_are_as_safe() -> None:
    """One object a line, whatever is in the message; the same is left out of it."""
    code = (
        "import logging; from forebay_proxy.core import logs; logs.set_up('info', 'json')\n"
        "logging.getLogger('forebay').warning('shard https://u:S3CRET@o/a.tar?sig=S3CRET: \\nslow \"quoted\"')\n"
        "logging.getLogger('aiohttp').warning('Unclosed connection ValueError(S3CRET)\\nS3CRET')\n"
        "try: 1 / int('S3CRET')\n"
        "except ValueError: logging.getLogger('forebay').exception('it failed')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert "S3CRET" not in done.stderr.replace("int('S3CRET')", "")
    assert [(each["level"], each["logger"]) for each in said] == [("warning", "forebay"), ("warning", "aiohttp"), ("error", "forebay")]
    assert said[0]["message"] == 'shard https://o/a.tar: \nslow "quoted"' or said[0]["message"].startswith("shard https://o/a.tar")
    assert said[1]["message"] == "Unclosed connection ValueError"
    assert said[2]["message"].startswith("it failed\n")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", each["time"]) for each in said)
