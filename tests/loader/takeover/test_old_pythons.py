"""A training environment may have an older Python than the sidecar, or a newer one: the takeover runs there, standard library only.

(That the whole loader can be parsed there is told by tests/test_layers.py.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.other_python import TAKEOVER, clean_environment

pytestmark = pytest.mark.once  # it brings a webdataset of its own
# As much of webdataset as the takeover looks at: the real one needs numpy, which no bare interpreter has.
WEBDATASET = {
    "__init__.py": "from . import tariterators\nfrom .gopen import gopen, gopen_schemes\n",
    "gopen.py": """
def gopen_pipe(url, mode="rb", bufsize=8192): ...
def gopen_curl(url, mode="rb", bufsize=8192): ...
def gopen_error(url, *rest): raise ValueError(url)
def rewrite_url(url): return url
gopen_schemes = {"__default__": gopen_error, "pipe": gopen_pipe, "http": gopen_curl, "https": gopen_curl}
def gopen(url): return gopen_schemes.get(url.partition(":")[0], gopen_error)(rewrite_url(url))
""",
    "tariterators.py": """
from . import gopen
def url_opener(data, handler=None, **options):
    for sample in data:
        yield {**sample, "stream": gopen.gopen(sample["url"])}
""",
}
SCRIPT = """
import json, sys
from webdataset.tariterators import url_opener
opened = [sample["stream"].read().decode() for sample in url_opener({"url": f"s3://bucket/{n}.tar"} for n in range(3))]
print(json.dumps([opened, sorted(name for name in ("torch", "numpy", "aiohttp") if name in sys.modules)]))
"""


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_it_takes_over_on(version: str, tmp_path: Path, proxy: FakeServer) -> None:
    """Three shards are announced and read through the sidecar, by an interpreter that has nothing installed."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not installed here")
    for number in range(3):
        proxy.put(f"/s3/bucket/{number}.tar", f"shard {number}".encode())
    package = tmp_path / "webdataset"
    package.mkdir()
    for name, text in WEBDATASET.items():
        (package / name).write_text(text)
    environ = clean_environment(tmp_path / "run", PYTHONPATH=f"{TAKEOVER}:{tmp_path}", FOREBAY_URL=proxy.url, FOREBAY_FD="0")
    command = [python, "-s", "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[f"shard {number}" for number in range(3)], []]
    assert [told.method for told in proxy.plans][:1] == ["PUT"]
