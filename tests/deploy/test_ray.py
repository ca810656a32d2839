"""The Ray runtime environment: its variables are what a loader looks for."""

from __future__ import annotations

from support.deployed import DEPLOY, documents

from forebay_loader.identity.reader_name import ensure_job
from forebay_loader.transport.endpoint import Endpoint, find_endpoint
from forebay_proxy.server.net.listen import DEFAULT_PORT


def test_a_worker_finds_the_sidecar_of_its_node() -> None:
    """At the default port, on loopback past every proxy, with one job's name for all workers. Ray wants text for each value."""
    [found] = documents(DEPLOY / "ray/runtime_env.yaml")
    assert set(found) == {"env_vars"}
    environ = found["env_vars"]
    assert all(isinstance(value, str) for value in environ.values())
    assert find_endpoint(environ) == Endpoint("127.0.0.1", DEFAULT_PORT)
    assert ensure_job(dict(environ)) == environ["FOREBAY_JOB"]
    assert "127.0.0.1" in environ["NO_PROXY"].split(",")
