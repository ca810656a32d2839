"""A real Prometheus beside a test, and promtool. ``running_prometheus`` scrapes one target with the rules of one file."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Prometheus", "needs_prometheus", "needs_promtool", "promtool", "running_prometheus"]

_WHY = "not found: apt-get install --no-install-recommends prometheus"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"prometheus {_WHY}")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=f"promtool {_WHY}")

_LISTENS = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')
_START_S = 120
_CONFIG = """
global: {{scrape_interval: {every_s}s, scrape_timeout: {every_s}s, evaluation_interval: {every_s}s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: forebay, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@dataclass(frozen=True)
class Prometheus:
    """A running server at ``url``."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of ``expression``; AssertionError with the server's own words when it refuses it."""
        answer = self._get("/api/v1/query", query=expression)
        assert answer["status"] == "success", (expression, answer)
        result = answer["data"]["result"]
        assert isinstance(result, list), (expression, answer)
        return result

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """The range vector of ``expression``, as a panel asks for it."""
        answer = self._get("/api/v1/query_range", query=expression, start=f"{start_s}", end=f"{end_s}", step=f"{step_s}")
        assert answer["status"] == "success", (expression, answer)
        result = answer["data"]["result"]
        assert isinstance(result, list), (expression, answer)
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules with their health and last error."""
        return [rule for group in self._get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    def wait_for(self, expression: str, *, within_s: float = 120) -> list[dict[str, Any]]:
        """Ask until ``expression`` has a result. Scrapes cannot be waited for in another way."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if result := self.query(expression):
                return result
            time.sleep(0.1)
        raise AssertionError(f"no result for {expression} within {within_s} s; targets: {self._get('/api/v1/targets')}")

    def _get(self, path: str, **query: str) -> Any:
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:  # 400 carries the reason a query was refused
            return json.load(error)


def promtool(*arguments: str) -> None:
    """Run promtool; AssertionError with all it said when it is not content."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def running_prometheus(directory: Path, target: str, rules: Path, every_s: int = 1) -> Iterator[Prometheus]:
    """Scrape ``target`` (host:port) every so many seconds with the rules of the file ``rules``; data and log lie in ``directory``."""
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=json.dumps(str(rules)), target=target, every_s=every_s), encoding="utf-8")
    log = directory / "prometheus.log"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield Prometheus(f"http://{_address(process, log)}")
        finally:
            process.terminate()
            process.wait(240)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, as its log says: with port 0 nobody else can take the port in between."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        said = log.read_text(encoding="utf-8", errors="replace")
        if (found := _LISTENS.search(said)) and "Server is ready to receive web requests" in said:
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"prometheus did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
