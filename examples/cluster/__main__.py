"""From a far origin to an epoch on two training nodes, on this machine; the figures at the end say whether every promise was kept.

    PYTHONPATH=examples python -m cluster [--shards 8] [--samples 64] [--latency-ms 50] [--rate-mb 20] [--ray-python PYTHON]

1. A far origin: HTTP with a latency, and a rate for each connection.
2. ``forebay stage`` reads it once, makes pictures smaller, shuffles all samples, and writes shards to an S3 store. It uses two Ray nodes,
   or ``--engine local`` where Ray is not installed. ``--ray-python`` names the Python of an environment that has Ray and Forebay.
3. The S3 store is a Ceph RADOS gateway, which is started here. With ``--store URL`` it is another one; the AWS_ variables then open it.
4. Two training nodes: each one is a ``forebay run`` with a sidecar, a cache and a run directory of its own. The sidecars share a tier in
   the same store (``--shared``).

Exit code 0: each node saw every sample once, and the far origin sent each byte once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3

from demo.processes import OriginProcess, PartFailed, free_port
from forebay_proxy.wire.protocol.runfile import read_run_file
from make_shards import make_shards

ROOT = Path(__file__).parents[2]
GATEWAY = ROOT / "tests" / "support" / "rgw.sh"
END_S = 20
FOREBAY = ("-P", "-m", "forebay_proxy")
BUCKET = "forebay-cluster-example"
MOST_SENT = 1.02  # of the far set's bytes: the first question for a shard's version asks for one of its bytes


@contextmanager
def gateway(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A RADOS gateway of our own: its address, and the keys that open it."""
    port, monitor_port = free_port(), free_port()
    words = ["bash", str(GATEWAY), str(folder), str(port), str(monitor_port), "cluster-key", "cluster-secret"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PartFailed(f"the RADOS gateway did not start (radosgw, ceph-mon, ceph-osd; or name --store): {done.stderr[-300:]}")
        yield f"http://127.0.0.1:{port}", {"AWS_ACCESS_KEY_ID": "cluster-key", "AWS_SECRET_ACCESS_KEY": "cluster-secret"}
    finally:
        for file in folder.glob("run/*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


def node(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a machine of its own: a run directory and a cache that no other node sees."""
    (folder / "run").mkdir(parents=True, mode=0o700)
    own = {"XDG_RUNTIME_DIR": str(folder / "run"), "FOREBAY_CACHE_DIR": str(folder / "cache"), "FOREBAY_CACHE_SIZE": "500MB"}
    return {**environ, **own, "FOREBAY_PORT": "0", "FOREBAY_SOCKET": "off", "FOREBAY_IDLE_EXIT_S": "1"}


def await_end(run: Path) -> None:
    """Until no sidecar of that run directory is there: each one ends a second after its last user. Its cache is removed then."""
    deadline = time.monotonic() + END_S
    while read_run_file({"XDG_RUNTIME_DIR": str(run)}) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def ray_nodes(python: str, folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """The address of a cluster of two Ray nodes."""
    ours = ("FOREBAY_ALLOW_ORIGIN", "FOREBAY_CACHE_SIZE", "FOREBAY_PORT", "FOREBAY_IDLE_EXIT_S")
    words = [python, "-m", "cluster.ray_nodes", str(folder), *(f"{name}={environ[name]}" for name in ours)]
    folder.mkdir()
    with (
        (folder / "log").open("w+") as log,
        subprocess.Popen(words, env=dict(environ), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not (line := process.stdout.readline()):
                log.seek(0)
                raise PartFailed(f"the Ray nodes did not start: {log.read().strip()[-300:]}")
            yield json.loads(line)["address"]
        finally:
            process.stdin.close()


def stage(python: str, words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """``forebay stage``, and the sums that it prints."""
    done = subprocess.run([python, *FOREBAY, "stage", *words, "--json"], env=dict(environ), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise PartFailed(f"forebay stage ended with exit code {done.returncode}")
    sums: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return sums


def begin_training(urls: Sequence[str], store: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    words = [sys.executable, *FOREBAY, "run", "--allow-origin", store, "--shared", f"s3://{BUCKET}/tier?endpoint={store}"]
    words += ["--", sys.executable, "-m", "cluster.train", *urls]
    return subprocess.Popen(words, env=dict(environ), stdout=subprocess.PIPE, text=True)


def trained(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    if process.returncode:
        raise PartFailed(f"a training node ended with exit code {process.returncode}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def play(options: argparse.Namespace, folder: Path) -> bool:
    """All of it; True when every promise was kept."""
    src = make_shards(folder / "far", options.shards, options.samples)
    far_bytes = sum(file.stat().st_size for file in (folder / "far").iterdir())
    with ExitStack() as ending:
        origin = ending.enter_context(OriginProcess(folder / "far", latency_ms=options.latency_ms, rate_mb=options.rate_mb))
        store, keys = (options.store, {}) if options.store else ending.enter_context(gateway(folder / "gateway"))
        environ = {**os.environ, "AWS_DEFAULT_REGION": "us-east-1", **keys}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        client = boto3.session.Session(keys.get("AWS_ACCESS_KEY_ID"), keys.get("AWS_SECRET_ACCESS_KEY")).client(
            "s3", endpoint_url=store, region_name="us-east-1"
        )
        client.create_bucket(Bucket=BUCKET)

        driver = node(folder / "driver", environ) | {"FOREBAY_ALLOW_ORIGIN": origin.base}
        words = [origin.url(Path(src).name), f"s3://{BUCKET}/set?endpoint={store}"]
        words += ["--map", "resize,side=24", "--samples-per-shard", str(options.samples // 2), "--shuffle", "1"]
        python = options.ray_python or (sys.executable if find_spec("ray") else "")
        if python:
            address = ending.enter_context(ray_nodes(python, folder / "ray", driver))
            words += ["--engine", "ray", "--address", address]
        else:
            print("Ray is not installed here: the stage runs with --engine local")
        begun = time.monotonic()
        sums = stage(python or sys.executable, words, driver)
        staged_s = time.monotonic() - begun
        sent = origin.counts()

        names = json.loads(client.get_object(Bucket=BUCKET, Key="set/sizes.json")["Body"].read())
        urls = [f"s3://{BUCKET}/set/{name}?endpoint={store}" for name in names]
        nodes = [begin_training(urls, store, node(folder / f"node-{number}", environ)) for number in range(2)]
        epochs = [trained(process) for process in nodes]
        later = origin.counts()
        for run in folder.glob("**/run"):
            await_end(run)
        tier = client.list_objects_v2(Bucket=BUCKET, Prefix="tier/").get("KeyCount", 0)
        client.close()

    samples, share = options.shards * options.samples, sent["bytes"] / far_bytes
    print(f"far origin      {far_bytes:,} bytes in {options.shards} shards; sent {share:.3f} of them in {sent['requests']} requests")
    print(f"staged          {sums['samples']:,} samples in {sums['shards']} shards, {sums['bytes']:,} bytes, {staged_s:.1f} s")
    print(f"shared tier     {tier} objects")
    for number, epoch in enumerate(epochs):
        told = f"{epoch['samples']:,} samples, {epoch['distinct']:,} distinct, {epoch['seconds']} s"
        print(f"training node {number} {told}; the far origin was asked {later['requests'] - sent['requests']} times")
    whole = all(epoch["samples"] == epoch["distinct"] == samples for epoch in epochs)
    return whole and tier > 0 and sums["samples"] == samples and share <= MOST_SENT and later["requests"] == sent["requests"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shards", type=int, default=8, help="of the far set (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=64, help="in each of them (default: %(default)s)")
    parser.add_argument("--latency-ms", type=float, default=50, help="of the far origin (default: %(default)s)")
    parser.add_argument("--rate-mb", type=float, default=20, help="of one connection to it, in MB/s (default: %(default)s)")
    parser.add_argument("--store", default="", help="address of an S3 store (default: a RADOS gateway, started here)")
    parser.add_argument("--ray-python", default="", help="a Python with Ray and Forebay (default: this one, if it has Ray)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forebay-cluster-", ignore_cleanup_errors=True) as folder:
        try:
            kept = play(options, Path(folder))
        except PartFailed as failed:
            print(f"cluster: {failed}", file=sys.stderr)
            return 1
    print("every sample once on each node, and the far origin sent each byte once" if kept else "A PROMISE WAS BROKEN: see the figures")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
