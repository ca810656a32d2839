"""The wire runs inside training processes, whose Python may be older than the sidecar's.

(That all of it can be parsed there is told by tests/test_layers.py.)
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import forebay_proxy.wire

PACKAGE = Path(forebay_proxy.wire.__file__).parent
SCRIPT = """
from forebay_proxy.wire.commands import gopen_rules, sources
from forebay_proxy.wire.protocol import launch, plan
from forebay_proxy.wire.urls import patterns
assert launch._line(b'{"url": "http://h:1", "how": "joined"}', b"", None)["how"] == "joined"
source = sources.parse_source("pipe:aws s3 cp s3://b/k.tar - --endpoint-url http://h:9000")
assert source.url.proxy_path() == "/s3/b/k.tar?endpoint=http://h:9000"
rules = gopen_rules.gopen_rewrite("http://127.0.0.1:1")
assert gopen_rules.rewritten(rules, "pipe:curl -sL 'https://h/x?a&b' || true") == "http://127.0.0.1:1/https/h/x?a&b"
assert list(patterns.expand("{a,b}{08..10}"))[-1] == "b10"
encoded = plan.encode(["s3://b/k"], epoch=1)
assert plan.decode(*encoded) == plan.PlanBody(["s3://b/k"], 1)
assert plan.ReaderName.parse("a/b/c/d").job == "a"
"""


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_it_runs_on(version: str) -> None:
    """Import it and use each part, warnings being errors."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not installed here")
    subprocess.run([python, "-W", "error", "-c", SCRIPT], env={"PYTHONPATH": str(PACKAGE.parents[1])}, check=True)
