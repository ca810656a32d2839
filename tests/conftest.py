"""What every test may rely on: a clean environment, and a reason in words when a real part is missing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
from support.lengths import LEFT, examples
from support.pool import Measured, grouped, processor_s
from support.zygote import allow_zygotes, close_zygotes, fork_workers
from support.zygote_program import collapse

# The machine is shared: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("shared machine", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("shared machine")

# A shell lets what it starts in the background ignore Ctrl-C, and nohup the end of a terminal; so would every program the tests signal.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Settings of the person who runs the tests must not reach into them, nor their accounts.
_FOREIGN = (
    "FOREBAY_", "AWS_", "HF_", "HUGGING_FACE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR", "GOPEN_", "WDS_", "SLURM_", "TORCHELASTIC_",
    "SSL_CERT_",
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
LONGEST_ID = 100
LONGEST_FOLDER = 24  # sockets lie in it, whose whole path is 107 bytes at most
_FOLDERS = itertools.count()
QUOTES = "b'\""
# OpenCV puts a folder of its own there when a test imports it; no program could be forked for the tests behind that one (support.zygote).
_LIBRARIES = os.environ.get("LD_LIBRARY_PATH")
_KEPT = ("FOREBAY_VENV", "FOREBAY_PHOTOGRAPHS", "FOREBAY_APT")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measured", type=Path, metavar="FILE", help="write how long each test took, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is imported and collected, of which hardly anything is garbage
    _STARTERS.clear()  # a worker has imported this before it was forked
    _STARTERS.add(os.getpid())
    allow_zygotes()
    # pytest 9.1 forgets the fixtures of a folder that it comes back to (pytest-dev/pytest#14635): of `tests/a/x tests/y tests/a/z`, z
    # would run without those of a.
    config.args.sort(key=lambda path: path.partition("::")[0].split("/"))
    config.addinivalue_line("markers", "xdist_group(name): tests of one name run in one worker, one after the other")
    if config.option.measured and not hasattr(config, "workerinput"):  # workers report to the one who writes
        config.pluginmanager.register(Measured(config.option.measured))
    config.addinivalue_line("markers", "needs(*commands): skip, saying so, unless these commands are installed")
    config.addinivalue_line("markers", "webdataset: depends on webdataset's version, so it is run with both that are supported")
    config.addinivalue_line("markers", "once: of those, what one version tells enough about")
    config.addinivalue_line("markers", "each_python: run on every Python that is supported; needs pytest and webdataset, no torch")
    config.addinivalue_line("markers", "another_python: the same, but one Python beside the main one tells enough, the furthest from it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [command for mark in item.iter_markers("needs") for command in mark.args if shutil.which(command) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: scripts/test installs it when run as root on Debian")


def pytest_make_parametrize_id(val: object) -> str | None:
    """The beginning of a long value: workers of a pool send each other the names of all tests, and one value is a tar of 3 MB."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        return f"{ascii(val[:LONGEST_ID]).strip(QUOTES)}... of {len(val)}"
    return None


@pytest.hookimpl(wrapper=True)  # around xdist's own, which reads the groups and may be called before ours
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    grouped(items, sort=hasattr(config, "workerinput"))
    return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays until the end: a test that collects garbage, or forks, need not visit it.

    torch's workers seed numpy, which imports its generators only then: in each worker that is forked, 20 ms, and where the collector closes
    a file amid that, and the warning of it imports too, Python 3.11 fails with a KeyError (python/cpython#106176) and the worker ends.
    """
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")
    gc.enable()
    gc.collect()
    gc.freeze()
    if hasattr(session.config, "workerinput"):  # it takes as long as forty forks
        collapse()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    item.user_properties.append(("processor_s", -processor_s()))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "teardown":
        found = dict(item.user_properties)
        item.user_properties[:] = (found | {"processor_s": round(found["processor_s"] + processor_s(), 3)}).items()
    with _alarm_held():
        return (yield)


@contextlib.contextmanager
def _alarm_held() -> Generator[None]:
    """What pytest-timeout raises while a report is written would be a fault of pytest's own, and end the run with all its other tests."""
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


STUCK_S = 60.0  # of what a test that took too long does yet, and of each step of a teardown whose test has failed
THREAD_S = 30.0  # for a thread that was told to end
ENDING_S = 0.05  # for one that is just ending
METER = "forebay-meter-ticks"
GONE_S = 30.0  # for a process that was


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Again and again: the first alarm may be swallowed by a task, or lead to a ``with`` that waits for its process for ever."""
    done = yield
    if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(settings.timeout, STUCK_S))
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    item.stash[_THREADS] = set(threading.enumerate())  # of fixtures, which may outlive it
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """A test that failed is torn down under a limit too: pytest-timeout takes its alarm back then, and what waits would wait for ever."""
    unguarded = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    if unguarded:
        signal.signal(signal.SIGALRM, _stuck)
        signal.setitimer(signal.ITIMER_REAL, STUCK_S, STUCK_S)
    try:
        yield
    finally:
        if unguarded:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    before = item.stash.get(_THREADS, None)
    said = []
    if before is not None and (left := _left_behind(before)):
        said.append(
            f"threads left behind, which keep the run from ending or ask other tests' sidecars: {', '.join(thread.name for thread in left)}"
        )
    if said:
        pytest.fail("; ".join(said), pytrace=False)


def _stuck(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"the teardown of a test that failed waited for more than {STUCK_S:g} s")


_THREADS = pytest.StashKey[set[threading.Thread]]()


def _left_behind(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that came since, would be waited for at the end of the process, and do not end; and a meter's, which asks every sidecar
    that FOREBAY_URL names later."""
    came = [thread for thread in threading.enumerate() if thread not in before and (not thread.daemon or thread.name == METER)]
    if came and _alive(came, ENDING_S):
        gc.collect()  # a pool that nobody holds ends its threads when it is collected, which takes half a second in a whole run
    return _alive(came, THREAD_S)


def _alive(threads: list[threading.Thread], within_s: float) -> list[threading.Thread]:
    """Those that have not ended after so many seconds for each."""
    for thread in threads:
        with contextlib.suppress(RuntimeError):  # another thread is just starting it: not yet one to wait for
            thread.join(within_s)
    return [thread for thread in threads if thread.is_alive()]


# What a process inherits whatever becomes of it: a new session, another parent, an environment made from nothing. Nobody here uses message
# queues, so how much they may take tells our processes from everybody else's. Each worker of a pool has its own mark, and looks for what it
# has started itself; who began the pool looks again, for what a worker that died has left.
_MOST = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
_MARKS = _MOST if _MOST != resource.RLIM_INFINITY else 1 << 20  # no mark is the limit itself, which all others have
_STARTERS = set[int]()
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # which live as long as the process they belong to


def _processes() -> dict[int, str]:
    """Command lines of the living processes that come from this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours((entry / "limits").read_text()):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return {process: command for process, command in found.items() if command and not any(name in command for name in _OF_PYTHON)}


def _mark(process: int) -> int:
    return process % _MARKS


def _is_ours(limits: str) -> bool:
    marks = {str(_mark(process)) for process in _STARTERS} if _MARKS > 1 else set[str]()
    return any(line.startswith("Max msgqueue size") and line.split()[3] in marks for line in limits.splitlines())


def _processes_left() -> list[str]:
    """Those that were told to end, and do not; nor do they after this."""
    until = time.monotonic() + GONE_S
    while (left := _processes()) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return [f"{process} ({command[:200]})" for process, command in left.items()]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Everything is said; a thread or a process that does not end keeps nobody.

    Processes are told and ended here and fail no test: a gateway that many modules share could not be told from one that was forgotten.
    """
    close_zygotes()
    if processes := _processes_left():
        sys.stderr.write(f"processes left behind, now killed: {', '.join(processes)}\n")
    session = config.stash.get(_SESSION, None)
    if session is not None and (left := _left_behind({threading.main_thread()})):
        sys.stderr.write(f"ended without waiting for threads: {', '.join(thread.name for thread in left)}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(session.exitstatus) or 1)


_SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session
    if _MARKS > 1:
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (_mark(os.getpid()), _MOST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    fork_workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    for children in Path("/proc/self/task").glob("*/children"):
        _STARTERS.update(map(int, children.read_text().split()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    LEFT.extend(getattr(node, "workeroutput", {}).get("left", []))  # absent where it died


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = LEFT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT:
        left = "; ".join([*sorted(set(LEFT)), "a fifth of the examples of each property"])
        terminalreporter.write_line(f"done in part, and whole by scripts/test --long: {left}")


def _clean(patch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if (name.startswith(_FOREIGN) and name not in _KEPT) or name.lower() in _PROXIES:
            patch.delenv(name)
    if _LIBRARIES is None:
        patch.delenv("LD_LIBRARY_PATH", raising=False)
    else:
        patch.setenv("LD_LIBRARY_PATH", _LIBRARIES)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("NO_GCE_CHECK", "true")
    patch.setenv("AWS_CONFIG_FILE", os.devnull)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, which looks through the folders of all earlier tests for a number that is free: 2 ms where they are a thousand."""
    name = re.sub(r"\W", "_", request.node.name)[:LONGEST_FOLDER]
    (folders := tmp_path_factory.getbasetemp() / "t").mkdir(mode=0o700, exist_ok=True)
    (made := folders / f"{next(_FOLDERS)}-{name}").mkdir(mode=0o700)
    return made


@pytest.fixture
def place() -> Generator[Path]:
    """A directory of gigabytes, gone when the test ends; pytest keeps its own for three runs."""
    with tempfile.TemporaryDirectory(prefix="forebay-place-") as made:
        yield Path(made)


@pytest.fixture
def open_folder() -> Generator[Path]:
    """One that every user may walk to, and into: pytest's own folder is shut again by each run of pytest that begins beside this one."""
    with tempfile.TemporaryDirectory(prefix="forebay-open-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test; neither AWS nor Google looks for a metadata service."""
    _clean(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def clean_session() -> Generator[None]:
    """Nor does it reach what the tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        _clean(patch)
        yield
