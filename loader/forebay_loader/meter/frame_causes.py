"""Maps a thread's Python stack to a cause: the innermost frame that belongs to a known stage decides.

C code has no frames, so a decoder in C is seen as the frame that called it. Usually the file decides. The function's name matters only if
one file holds several stages.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from operator import methodcaller
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from forebay_proxy.wire.protocol.meter import CAUSE_INDEX

__all__ = ["ASKING", "STREAMING", "back_of", "cause_of", "function_of", "stack_of", "uncollected"]

# Not causes: the thread reads a shard, or asks the sidecar. Its ``Activity`` says what it waits for.
STREAMING, ASKING = -10, -11
_READ, _DECODE, _MAP, _COLLATE, _START = (CAUSE_INDEX[name] for name in ("read", "decode", "map", "collate", "start"))
_IDLE = CAUSE_INDEX["transfer"]  # a worker that waits for a request
_ORIGIN, _DISK = CAUSE_INDEX["origin"], CAUSE_INDEX["disk"]
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/forebay_loader/", os.path.dirname(os.__file__) + "/")
_MOST_FRAMES = 200  # frames to search; a pipeline has thirty
_ANY = ""

_Rule = Union[int, Mapping[str, int]]  # a cause, or causes by function; ``_ANY`` is for all other functions of the file
_PASSED: Mapping[str, int] = {}  # for files that decide nothing

# The longest entry that matches the end of a file's path decides. An entry that ends in "/" matches every file below that folder.
_RULES: Tuple[Tuple[str, _Rule], ...] = (
    ("/forebay_loader/stream/shard_descriptor.py", {"lone": _DISK, _ANY: STREAMING}),
    ("/forebay_loader/stream/restarted_body.py", _ORIGIN),  # webdataset's own openers, without the sidecar
    ("/forebay_loader/stream/direct_origin.py", _ORIGIN),
    ("/forebay_loader/stream/", STREAMING),
    ("/forebay_loader/transport/", ASKING),
    ("/forebay_loader/plan/", _READ),
    ("/forebay_loader/samples/", _READ),
    ("/forebay_loader/files/", _READ),
    ("/forebay_loader/dataset/decode_stage.py", _DECODE),
    ("/forebay_loader/dataset/", _READ),
    ("/forebay_loader/videos/", _DECODE),
    ("/forebay_loader/meter/process_page.py", _COLLATE),
    ("/webdataset/tariterators.py", _READ),
    ("/webdataset/cborsiterators.py", _READ),
    ("/webdataset/cache.py", _READ),
    ("/webdataset/shardlists.py", _READ),
    ("/webdataset/gopen.py", _ORIGIN),  # a command or a file, without the sidecar
    ("/webdataset/autodecode.py", _DECODE),
    ("/webdataset/tenbin.py", _DECODE),
    (
        "/webdataset/filters.py",
        {
            **dict.fromkeys(("_decode", "_xdecode", "decode_bin", "decode_text", "decode_pickle"), _DECODE),
            **dict.fromkeys(
                ("_batched", "default_collation_fn", "combine_values", "_unbatched", "_unlisted", "tuple2dict", "dict2tuple"), _COLLATE
            ),
            _ANY: _MAP,
        },
    ),
    ("/webdataset/", _PASSED),
    ("/tarfile.py", _READ),
    ("/PIL/ImageFile.py", _DECODE),
    ("ImagePlugin.py", _DECODE),
    ("/torchcodec/decoders/", _DECODE),
    ("/torchvision/io/", _DECODE),
    ("/decord/", _DECODE),
    ("/turbojpeg.py", _DECODE),
    ("/soundfile.py", _DECODE),
    ("/torch/utils/data/_utils/collate.py", _COLLATE),
    ("/torch/utils/data/_utils/fetch.py", {"__init__": _START, _ANY: _MAP}),
    ("/torch/utils/data/_utils/worker.py", _IDLE),
    ("/torchdata/stateful_dataloader/worker.py", _IDLE),
    ("/multiprocessing/spawn.py", _START),
    ("/multiprocessing/forkserver.py", _START),
    ("<frozen importlib._bootstrap>", _START),
    ("<frozen importlib._bootstrap_external>", _START),
)
_known: Dict[str, _Rule] = {}  # cache by file: a program has some thousands of files


def cause_of(frame: Optional[FrameType]) -> Optional[int]:
    """The index of a cause, ``STREAMING`` or ``ASKING``; None if no frame is known."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        rule = _known.get(code.co_filename)
        if rule is None:
            rule = _known[code.co_filename] = _rule_of(code.co_filename)
        if isinstance(rule, int):
            return rule
        if rule:
            found = rule.get(code.co_name)
            return rule[_ANY] if found is None else found
        frame = back_of(frame)
    return None


def function_of(frame: Optional[FrameType]) -> str:
    """The function that the innermost stage around ``frame`` called, such as ``augment (train.py:41)``; "" if the stage itself is running.

    The first function of the program's own counts, else the innermost function of a library.
    """
    own = last = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return ""
        code = frame.f_code
        if _known.get(code.co_filename, _PASSED):  # this is the stage: ``cause_of`` has cached its file
            break
        last = last or code
        own = code if not any(place in code.co_filename for place in _LIBRARIES) else own
        frame = back_of(frame)
    found = own or last
    if found is None:
        return ""
    file = "".join(each if each.isprintable() else "?" for each in os.path.basename(found.co_filename))
    return f"{_name(found)} ({file}:{found.co_firstlineno})"


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]  # includes the class since Python 3.11


# Only CPython 3.11: before it, frames always were objects; since 3.12 the collector runs only between two bytecode instructions.
_MAKES_FRAMES = (3, 11) <= sys.version_info < (3, 12)
_CALLED = methodcaller("__call__")


def back_of(frame: FrameType) -> Optional[FrameType]:
    """The caller's frame, also of another thread.

    CPython 3.11 creates that object in this call, and the garbage collector may run meanwhile. A finaliser may then let the other thread
    run, and the frame may be gone when the object is made to point to it. Using that object ends the process (seen once, in ``f_code``). So
    the collector is off during the call.
    """
    if not _MAKES_FRAMES or not gc.isenabled():
        return frame.f_back
    found: Optional[FrameType] = uncollected(partial(getattr, frame, "f_back"))
    return found


def uncollected(call: Callable[[], Any]) -> Any:
    """Return ``call()``, with the garbage collector off.

    All three calls are made from C, so no other thread runs in between: a fork at that moment would leave the child without a collector.
    """
    try:
        _, found, _ = map(_CALLED, (gc.disable, call, gc.enable))
    except BaseException:
        gc.enable()  # without the collector, training would run out of memory
        raise
    return found


def stack_of(frame: Optional[FrameType], most: int = 40) -> str:
    """The innermost ``most`` frames, one a line, the outermost first. Source files are not read: the process may hang on that disk."""
    lines: List[str] = []
    while frame is not None and len(lines) < most:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = back_of(frame)
    return "\n".join(reversed(lines))


def _rule_of(filename: str) -> _Rule:
    fitting = [(len(place), rule) for place, rule in _RULES if filename.endswith(place) or (place.endswith("/") and place in filename)]
    return max(fitting, key=lambda one: one[0])[1] if fitting else _PASSED
