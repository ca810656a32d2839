"""The parent of forked programs: imports what is named, then forks a child for each order (``support.zygote`` sends them).

    python -P zygote_program.py SOCKET forebay             children are ``forebay ARGUMENTS``
    python -P zygote_program.py SOCKET python [MODULES]    children are ``python ARGUMENTS``: -c, -m or SCRIPT, and theirs
    python zygote_program.py SOCKET tests FOLDER [PATHS]   the same, and pytest has imported what it collects there

What is ordered comes in one message: words, environment, directory, and descriptors with the numbers they are to have. The answer is the
child's process id.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import socket
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

_MOST = 1 << 17  # bytes of what is sent in one piece: an environment
_MOST_FILES = 64
_COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1
_HUGE = 2 << 20


def _wait_for_orders(orders: socket.socket) -> tuple[list[str], list[int]]:
    """Fork for each order; return only in what was forked, as what was ordered.

    What it starts as a sidecar, [] for itself, and the bytes of its segments, [] for the product's own.
    """
    sys.stdout.flush()  # what was said here, and is still held, each child would say again, into a stream of its own
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # a collection in a child would visit, and so copy, all that was imported
    try:
        (arguments, program, size, environ, directory, numbers), files = _next_order(orders)
    except KeyboardInterrupt:  # which reaches the whole group; who asked is told by the end of the socket
        os._exit(0)
    orders.detach()
    _move(dict(zip(numbers, files, strict=True)))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments
    return list(program), [*map(int, size)]


def _next_order(orders: socket.socket) -> tuple[list[Any], list[int]]:
    while True:
        told, files, flags, _ = socket.recv_fds(orders, _MOST, _MOST_FILES)
        if not told:
            os._exit(0)
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be forked"
        cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        assert not cut, f"an order is longer than {_MOST} bytes, or has more than {_MOST_FILES} files"
        order = json.loads(told)
        child = _fork_orphan()
        if child is None:
            return order, files
        orders.send(b"%d" % child)
        for each in files:
            os.close(each)


def _fork_orphan() -> int | None:
    """The id of a grandchild whose parent has ended; None in the grandchild, once its parent is the new one."""
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        with open(read, "rb") as said:
            child = int(said.read())
        os.waitpid(between, 0)
        return child
    between = os.getpid()
    child = os.fork()
    if child:
        os.write(write, b"%d" % child)
        os._exit(0)
    os.close(write)
    os.close(read)
    while os.getppid() == between:
        time.sleep(0.0005)
    return None


def _move(files: Mapping[int, int]) -> None:
    """Give each descriptor its number, whatever has that number now, and close all others."""
    free = max(*files, *files.values()) + 1
    moved = {number: fcntl.fcntl(each, fcntl.F_DUPFD, free) for number, each in files.items()}
    for number, each in moved.items():
        os.dup2(each, number)
    kept = [-1, *sorted(files), os.sysconf("SC_OPEN_MAX")]
    for below, above in itertools.pairwise(kept):
        if below + 1 < above:  # an empty range would be taken for all there is
            os.closerange(below + 1, above)


def collapse() -> None:
    """Gather what this process has written into huge pages, where the kernel can: a fork copies a page table entry for each page.

    With the 600 MB of a worker of tests a fork and its end take 5 ms of a processor then, instead of 50.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps", encoding="utf-8") as maps:
        places = [line.split() for line in maps]
    for span, rights, *_, inode in (place[:5] for place in places):
        if rights.startswith("rw") and inode == "0":
            first, end = (int(each, 16) for each in span.split("-"))
            # one by one: behind one that cannot be, the rest would not be tried
            for address in range(-(-first // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                advise(address, _HUGE, _COLLAPSE)


def _become_cheap_to_fork() -> None:
    collapse()
    for made in weakref.finalize._registry.values():  # type: ignore[attr-defined]  # torch takes its operators back at an end, one by one
        made.atexit = False


def _be_forebay(orders: socket.socket) -> None:
    import click  # noqa: PLC0415
    from support.small_segments import seams_with  # noqa: PLC0415 -- and all of the sidecar with it

    from forebay_proxy.cli.main import cli, main  # noqa: PLC0415

    context = click.Context(cli)
    for name in cli.list_commands(context):
        cli.get_command(context, name)
    _become_cheap_to_fork()
    program, size = _wait_for_orders(orders)
    _end_with(lambda: main(seams_with(program, *size)))


def _be_python(orders: socket.socket, *modules: str) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # or it would have a thread already
    for name in modules:
        importlib.import_module(name)
    _become_cheap_to_fork()
    path = list(sys.path)
    _wait_for_orders(orders)
    first = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = first + [each for each in path if each not in first]
    _end_with(lambda: _run(sys.argv[1:]))


def _be_tests(orders: socket.socket, folder: str, *paths: str) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as above
    os.chdir(folder)
    pytest, failed = importlib.import_module("pytest"), set[str]()

    class Watch:
        @pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]  # imported by name
        def pytest_make_collect_report(self, collector: Any) -> Iterator[Any]:
            report = yield
            if report.failed:
                failed.add(str(collector.path))
            return report

    pytest.main(["--collect-only", "-qq", "-n0", "--capture=no", "-p", "no:cacheprovider", *paths], plugins=[Watch()])
    # A worker tells what cannot be imported. It would not import again what is here in half, and would find a file without tests.
    for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) in failed]:
        del sys.modules[name]
    _wait_for_orders(orders)
    _end_with(lambda: _run(sys.argv[1:]))


def _end_with(program: Callable[[], object]) -> NoReturn:
    """As it ends, threads and files in order, but for taking every module apart: so end those that multiprocessing forks."""
    code: object = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _run(arguments: list[str]) -> None:
    first, *others = arguments
    if first == "-m":
        sys.argv[:] = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if first == "-c":
        sys.argv[:] = ["-c", *others[1:]]
        sys.path.insert(0, "")
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
        return
    sys.argv[:] = arguments
    sys.path.insert(0, os.path.dirname(first))
    main.__file__ = first
    with open(first, encoding="utf-8") as file:
        source = file.read()
    exec(compile(source, first, "exec"), main.__dict__)


def _main() -> None:
    number, kind, *others = sys.argv[1:]
    sys.argv[1:] = []
    if not sys.flags.safe_path:
        del sys.path[0]  # this folder, whose names are no modules
    {"forebay": _be_forebay, "python": _be_python, "tests": _be_tests}[kind](socket.socket(fileno=int(number)), *others)


if __name__ == "__main__":
    _main()
