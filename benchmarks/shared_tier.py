"""The shared tier where it is used: four sidecars in network namespaces of their own, one RADOS gateway, one slow far origin.

    python benchmarks/shared_tier.py [--quick] [--json] [--seed 1] [--shards 16] [--latency-ms 50] [--connection-mb 10] [--together-mb 25]

quarters   each node reads a quarter of the set, then another quarter, without plans
same       all nodes read the set in the same order, announced by plans
again      a second job: fresh nodes read the same set, which the tier has
death      as ``same``, and a third of the way one sidecar is killed (SIGKILL)
gateway    as ``again`` without plans, and a third of the way the gateway is killed (SIGKILL), or stopped so that it never answers (SIGSTOP)

``quarters`` and ``same`` run without the tier too, and so does ``gateway``. Readers look at the first and last 16 bytes of each segment.
Nodes reach the gateway and the origin over a bridge. Needs root (or ``unshare --map-root-user --net``), ip, nsenter and Ceph's programs,
and a machine that is not busy: the tier is left alone where its answers take longer than a second. Some seven minutes on two processors,
``--quick`` two. Exit code 1 if a limit is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from far_origin import far_origin  # noqa: E402
from far_readers import Hearing, Read, Reader, WrongBytes, get_json  # noqa: E402
from far_set import FarSet  # noqa: E402
from figures import Figure, as_json, at_most, exactly, lines  # noqa: E402
from rivals import process  # noqa: E402
from support.s3_servers import S3Server, gateway  # noqa: E402
from support.sidecar import Sidecar, start, wait_until  # noqa: E402

NODES = 4
HUB = "10.77.0.1"  # of the bridge, where gateway and origin listen
NEW_NET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
Disturb = Callable[[list[Sidecar]], object]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def networks() -> Iterator[list[int]]:
    """This process moves to a network of its own with a bridge; ids of processes that each hold the network of a node, joined to it."""
    if _libc.unshare(NEW_NET) != 0:
        sys.exit(f"no network namespace: {os.strerror(ctypes.get_errno())}; run as root, or under unshare --map-root-user --net")
    ip("link", "set", "lo", "up")
    ip("link", "add", "forebay", "type", "bridge")
    ip("address", "add", f"{HUB}/24", "dev", "forebay")
    ip("link", "set", "forebay", "up")
    with ExitStack() as holders:
        pids = []
        for node in range(NODES):
            holder = holders.enter_context(process(["unshare", "--net", "sh", "-c", "echo made; exec sleep infinity"], stdout=-1))
            assert holder.stdout is not None
            holder.stdout.readline()
            ip("link", "add", f"node{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            ip("link", "set", f"node{node}", "master", "forebay", "up")
            inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip"]
            for words in ("link set lo up", f"address add 10.77.0.{10 + node}/24 dev eth0", "link set eth0 up"):
                subprocess.run([*inside, *words.split()], check=True)
            pids.append(holder.pid)
        yield pids


@dataclass
class Outcome:
    """What nodes did together. ``hearings``: of each node; ``broken``: what each reader met, "" for nothing."""

    seconds: float = 0.0
    far_bytes: int = 0
    hearings: list[Hearing] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # with the tier, as the nodes logged them
    disturbed_at: float = 0.0

    @property
    def reads(self) -> list[Read]:
        return [read for hearing in self.hearings for read in hearing.reads]

    def longest_s(self) -> float:
        """That a reader waited for a segment, of those that were read when or after something was done to the cluster."""
        return max(read.ended - read.began for read in self.reads if read.ended > self.disturbed_at)


class Cluster:
    """Four nodes at a time, each with an empty cache, around one gateway and one origin."""

    def __init__(self, shards: FarSet, networks: list[int], store: S3Server, origin: str) -> None:
        self.shards, self.networks, self.store, self.origin = shards, networks, store, origin

    def bucket(self, name: str) -> str:
        with self.store.client() as client:
            client.create_bucket(Bucket=name)
        return name

    def run(
        self,
        bucket: str,
        orders: Sequence[Sequence[int]],
        *,
        plans: bool,
        disturb: Disturb | None = None,
    ) -> Outcome:
        """Fresh nodes read; ``bucket`` "" for no tier. ``disturb`` is called once a third of all is read."""
        with tempfile.TemporaryDirectory(prefix="forebay-tier-") as directory, ThreadPoolExecutor(NODES) as pool:
            sidecars = list(pool.map(lambda node: self._started(Path(directory) / str(node), node, bucket), range(NODES)))
            try:
                return self._run(sidecars, bucket, orders, plans, disturb)
            finally:
                list(pool.map(Sidecar.terminate, sidecars))

    def _started(self, home: Path, node: int, bucket: str) -> Sidecar:
        home.mkdir()
        shared = ("--shared", f"s3://{bucket}/tier?endpoint={self.store.url}") if bucket else ()
        wrapper = ("nsenter", f"--net=/proc/{self.networks[node]}/ns/net")
        return start(home, "--cache-size", "8GB", *shared, allow=[self.origin], environ=self.store.environ, wrapper=wrapper)

    def _run(self, sidecars: list[Sidecar], bucket: str, orders: Sequence[Sequence[int]], plans: bool, disturb: Disturb | None) -> Outcome:
        time.sleep(4)  # the SDK is loaded, as it is before a training begins
        self.sent()
        outcome = Outcome(hearings=[Hearing() for _ in sidecars], broken=[""] * NODES)
        threads = [threading.Thread(target=self._reads, args=(node, sidecars[node], orders[node], plans, outcome)) for node in range(NODES)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        if disturb is not None:
            third = sum(self.shards.lengths[number] for order in orders for number in order) / 3
            while sum(hearing.bytes for hearing in outcome.hearings) < third:
                time.sleep(0.005)
            outcome.disturbed_at = time.monotonic()
            disturb(sidecars)
        for thread in threads:
            thread.join()
        outcome.seconds = time.monotonic() - began
        if bucket and disturb is None:  # a second job would find it hours later
            wait_until(lambda: self._manifests(bucket) == self.shards.count)
        outcome.far_bytes = self.sent()
        return outcome

    def _manifests(self, bucket: str) -> int:
        with self.store.client() as client:
            return sum(each["Key"].endswith(".json") for each in client.list_objects_v2(Bucket=bucket).get("Contents", []))

    def sent(self) -> int:
        """Bytes of bodies that the far origin sent since it was asked last."""
        return sum(sent for *_, sent in asyncio.run(get_json(self.origin, "/-/log")))

    def _reads(self, node: int, sidecar: Sidecar, order: Sequence[int], plans: bool, outcome: Outcome) -> None:
        """In a thread, which moves to the network of the node."""
        self._enter(node)
        name = f"job/{node}/0/0.0" if plans else ""
        reader = Reader(name, self.shards, sidecar.url, self.origin, outcome.hearings[node], window=None if plans else 0)
        try:
            asyncio.run(reader.epoch(0, order))
            outcome.troubles += [line for line in sidecar.log_text().splitlines() if "shared tier s3" in line]
        except (WrongBytes, OSError) as error:
            outcome.broken[node] = repr(error)
        finally:
            reader.close()

    def _enter(self, node: int) -> None:
        with open(f"/proc/{self.networks[node]}/ns/net") as network:
            if _libc.setns(network.fileno(), NEW_NET) != 0:
                raise OSError(ctypes.get_errno(), "a thread cannot enter the network of its node")


def measured(cluster: Cluster, *, quick: bool) -> list[Figure]:
    shards = cluster.shards
    everything = list(range(shards.count))
    quarter = -(-shards.count // NODES)
    cut = [everything[at : at + quarter] for at in range(0, shards.count, quarter)]
    two_quarters = [[*cut[node], *cut[(node + 1) % NODES]] for node in range(NODES)]
    same = [everything] * NODES
    figures: list[Figure] = []
    wrong: list[str] = []

    def of_set(outcome: Outcome) -> float:
        return round(outcome.far_bytes / shards.bytes, 4)

    def did(name: str, bucket: str, orders: Sequence[Sequence[int]], **how: object) -> Outcome:
        outcome = cluster.run(bucket, orders, **how)  # type: ignore[arg-type]
        wrong.extend(f"{name}: {said}" for said in outcome.broken if said)
        say(f"{name}: {outcome.seconds:.1f} s, far bytes {of_set(outcome)} x the set, longest wait {outcome.longest_s():.2f} s")
        for line in outcome.troubles:
            say(f"  {line}")
        return outcome

    plain = did("quarters, no tier", "", two_quarters, plans=False)
    tier = did("quarters", cluster.bucket("quarters"), two_quarters, plans=False)
    figures.append(Figure("quarters without the tier: far bytes", of_set(plain), "x set"))
    figures.append(at_most("quarters: far bytes", of_set(tier), 1.02, "x set"))
    figures.append(Figure("quarters: seconds, of those without the tier", tier.seconds / plain.seconds))

    plain = did("same order, no tier", "", same, plans=True)
    bucket = cluster.bucket("same")
    tier = did("same order", bucket, same, plans=True)
    again = did("second job", bucket, same, plans=True)
    figures.append(Figure("same order without the tier: far bytes", of_set(plain), "x set"))
    figures.append(at_most("same order: far bytes", of_set(tier), 1.02, "x set"))
    figures.append(at_most("same order: seconds, of those without the tier", tier.seconds / plain.seconds, 0.6))
    figures.append(exactly("second job: far bytes", of_set(again), 0, "x set"))
    figures.append(at_most("second job: seconds, of those without the tier", again.seconds / plain.seconds, 0.6))

    death = cluster.run(cluster.bucket("death"), same, plans=True, disturb=lambda sidecars: sidecars[0].kill())
    say(f"a node dies: {death.seconds:.1f} s, far origin {of_set(death)} x the set, longest {death.longest_s():.2f} s")
    wrong.extend(f"a node dies: {said}" for said in death.broken[1:] if said)
    figures.append(Figure("a node dies: far bytes", of_set(death), "x set"))
    figures.append(
        exactly("a node dies: bytes that the three others read", sum(each.bytes for each in death.hearings[1:]), 3 * shards.bytes)
    )
    figures.append(Figure("a node dies: seconds, of those without a death", death.seconds / tier.seconds))
    figures.append(at_most("a node dies: the longest that a reader then waited for a segment", death.longest_s(), 10.0, "s"))

    plain = did("same order, no plans, no tier", "", same, plans=False, disturb=lambda sidecars: None)
    figures.append(Figure("no tier: the longest that a reader waited for a segment", plain.longest_s(), "s"))
    for number in (signal.SIGKILL,) if quick else (signal.SIGKILL, signal.SIGSTOP):
        with ExitStack() as held:
            name = f"the gateway ends by {number.name}"
            gone = partial(held.enter_context, cluster.store.signalled(number))
            outcome = did(name, bucket, same, plans=False, disturb=lambda sidecars: gone())  # noqa: B023
        figures.append(Figure(f"{name}: far bytes", of_set(outcome), "x set"))
        most = round(plain.longest_s() + 1.5, 2)  # a second until it is left alone, and half for the noise of two processors
        figures.append(at_most(f"{name}: the longest that a reader then waited", outcome.longest_s(), most, "s"))
    for said in wrong:
        say(f"WRONG: {said}")
    return [*figures, exactly("readers that met an error or a wrong byte", len(wrong), 0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, help="of 8 to 24 MiB (default: 16, quick 8)")
    parser.add_argument("--latency-ms", default="50")
    parser.add_argument("--connection-mb", type=float, default=10.0)
    parser.add_argument("--together-mb", type=float, default=25.0)
    given = parser.parse_args()
    for program in ("ip", "nsenter", "unshare", "radosgw", "ceph-mon", "ceph-osd"):
        if shutil.which(program) is None:
            sys.exit(f"no {program}: apt-get install --no-install-recommends iproute2 util-linux radosgw ceph-mon ceph-osd")
    shards = FarSet(given.shards or (8 if given.quick else 16), given.seed)
    how = {"latency_ms": given.latency_ms, "connection_mb": given.connection_mb, "together_mb": given.together_mb}
    with networks() as joined, gateway(HUB) as store, far_origin(shards, address=HUB, **how) as origin:
        say(f"{shards.count} shards, {shards.bytes / 1e6:.0f} MB; gateway and origin at {HUB}")
        figures = measured(Cluster(shards, joined, store, origin), quick=given.quick)
    command = " ".join(["python benchmarks/shared_tier.py", *(part for part in sys.argv[1:] if part != "--json")])
    print(as_json("shared tier", command, figures) if given.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
