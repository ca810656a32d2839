"""One tree of errors: each class knows its HTTP status and whether asking again can help.

Order of the tree = how a person at three in the morning sorts them: my settings, my URL, the origin, the disk.
Library errors are mapped to these where they enter (``origins/``, ``store.py``), with ``raise … from error``.
"""

from __future__ import annotations

from typing import TypeVar

from forebay_proxy.wire.urls.patterns import meant_range

__all__ = [
    "CacheError",
    "CacheFull",
    "ClientGone",
    "ConfigError",
    "DigestDiffers",
    "DiskFailed",
    "FellBehind",
    "ForebayError",
    "IndexNotYet",
    "InvalidRequest",
    "InvalidShard",
    "NoIndex",
    "NotTarArchive",
    "OriginError",
    "OriginLied",
    "OriginLoops",
    "OriginRefused",
    "OriginTimeout",
    "OriginUnavailable",
    "RangeNotSatisfiable",
    "ShardChanged",
    "ShardError",
    "ShardForbidden",
    "ShardNotFound",
    "TruncatedShard",
    "VersionLost",
    "WrongBytes",
    "bare",
    "causes",
]


Caught = TypeVar("Caught", bound=BaseException)


class ForebayError(Exception):
    """Base of all; never raised itself.

    ``status`` is the HTTP status a client sees, ``retryable`` whether the same request may succeed later, ``title`` the short name used in
    problem+json (RFC 9457). ``next_step`` tells the reader of the message what to do; ``usual_step`` is the next step unless the raising
    code gave a better one.
    """

    status = 500
    retryable = False
    title = "Internal error"
    usual_step = ""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step

    @property
    def step(self) -> str:
        """What the person reading it should do; "" where nobody knows."""
        return self.next_step or self.usual_step


class ConfigError(ForebayError):
    """The settings or the machine do not allow a start. Printed as one line, exit code 2."""

    title = "Configuration error"


class InvalidRequest(ForebayError):
    """The request is malformed (a Range, a header, a plan body). Says what would be right."""

    status = 400
    title = "Invalid request"

    def __init__(self, message: str, *, next_step: str = "", status: int = 400) -> None:
        super().__init__(message, next_step=next_step)
        self.status = status


class ShardError(ForebayError):
    """Something about one shard; the message always names it (never with a credential)."""

    def __init__(self, shard: str, cause: str, *, next_step: str = "") -> None:
        super().__init__(f"shard {shard}: {cause}", next_step=next_step)
        self.shard = shard
        self.cause = cause


class InvalidShard(ShardError):
    """The URL cannot name a shard: unknown scheme, empty bucket, control characters, too long."""

    status = 400
    title = "Invalid shard URL"


class OriginRefused(ShardError):
    """Forebay itself refuses to go there (address class, strict origins). Says which flag would allow it."""

    status = 403
    title = "Origin refused"


class ShardForbidden(ShardError):
    """The origin says 401 or 403. ``status`` keeps which."""

    status = 403
    title = "Origin denies access"
    usual_step = "check which credential travels: the request's own headers, or the sidecar's AWS settings (forebay config show)"

    def __init__(self, shard: str, cause: str, *, next_step: str = "", status: int = 403) -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.status = status


class ShardNotFound(ShardError):
    """The origin says 404 or 410, or the file is absent."""

    status = 404
    title = "Shard not found"
    usual_step = "check the URL against the origin; a 404 is remembered for 5 s"

    @property
    def step(self) -> str:
        """A pattern that is none is not expanded, and asked for as it stands: then this is what is wrong."""
        meant = meant_range(self.shard)
        return f"its braces were taken literally: did you mean {meant}?" if meant else super().step


class NoIndex(ShardError):
    """This version of the shard has no sample index, and never will: it is no plain, well-formed tar of samples."""

    status = 404
    title = "No sample index"
    usual_step = "read it from its start; only whole, plain tars have an index"


class NotTarArchive(ShardError):
    """The shard is called a tar and does not begin like one: a login page, as a rule. Only ``warm`` minds; readers judge for themselves."""

    status = 502
    title = "Not a tar archive"
    usual_step = "ask for its URL with curl: a page to log in means that a token is missing (HF_TOKEN, a header, AWS credentials)"


class IndexNotYet(ShardError):
    """There is no sample index of the shard now: not all of it is here."""

    status = 409
    retryable = True
    title = "No sample index yet"
    usual_step = "read it first, or 'forebay index' its URL, and ask again"


class RangeNotSatisfiable(ShardError):
    """The range asked for lies outside the shard. ``length`` is the shard's length in bytes, for ``Content-Range: bytes */N``."""

    status = 416
    title = "Range not satisfiable"

    def __init__(self, shard: str, cause: str, *, length: int | None, next_step: str = "") -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.length = length


class ShardChanged(ShardError):
    """The origin now holds another version than the one being read. Asking again opens the new version."""

    status = 502
    retryable = True
    title = "Shard changed on the origin"
    usual_step = "read the shard again from its start: it is another version now"


class TruncatedShard(ShardError):
    """Fewer bytes than promised, or an end that cannot be told from a cut."""

    status = 502
    retryable = True
    title = "Shard truncated"
    usual_step = "ask again; if it stays, the origin cuts this shard off or promises a wrong length"


class VersionLost(TruncatedShard):
    """A body broke whose version has no name: nothing would tell another one's bytes from those that came. Asking again begins anew."""

    title = "Shard version lost"
    usual_step = "read the shard again from its start"


class DigestDiffers(ShardError):
    """All of a shard came, and its bytes do not have the digest the origin names. Raised before the last segment is given to any reader.

    The first time it is fetched once more, since something on the way may have been at fault; ``again``: that was of no use.
    """

    status = 502
    title = "Shard differs from its digest"

    def __init__(self, shard: str, cause: str, *, again: bool) -> None:
        step = (
            "compare the object with the digest its origin sends (curl -I): one of them is wrong there, or a proxy on the way changes it; "
            "--no-origin-digests reads it unchecked"
        )
        super().__init__(shard, cause, next_step=step if again else "read it again from its start: it is being fetched anew")
        self.retryable = not again


class WrongBytes(ShardError):
    """A stored segment was found wrong while a reader was in it: the bytes that were sent must not be taken for the shard."""

    status = 502
    retryable = True
    title = "Stored bytes are wrong"
    usual_step = "read the shard again from its start: the segment is fetched anew; if it happens again, look at the disk"


class OriginError(ShardError):
    """The origin answered nonsense: a wrong range, an unexpected status, another encoding half-way."""

    status = 502
    title = "Origin answered wrongly"
    usual_step = "ask the origin for the same URL with curl -v: it answers something no cache can keep"


class OriginLied(OriginError):
    """The answer contradicts the question, itself, or what the origin said before: a wrong range, another encoding, not even HTTP.

    A proxy on the way may be wrong now and then, so the origin is asked again a few times. ``of_version``: the answer contradicts what is
    known of this version; if the origin insists, the version is opened anew.
    """

    title = "Origin contradicts itself"

    def __init__(self, shard: str, cause: str, *, next_step: str = "", of_version: bool = False) -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.of_version = of_version


class OriginLoops(OriginError):
    """The origin answers 508: the URL leads to a sidecar that has seen this request before, as a rule to this one."""

    status = 508
    title = "Loop detected"
    usual_step = "look at the upstream proxy and the URL: following them leads back to a sidecar"


class OriginUnavailable(ShardError):
    """No connection, a reset, 408, 429 or 5xx.

    ``retry_after_s`` is the origin's own wish, if it had one. ``answered``: it was an answer, so the host is there. ``hopeless``: as long
    as the host has not answered anything yet, asking again cannot help: its name does not exist, or TLS fails.
    """

    status = 503
    retryable = True
    title = "Origin unavailable"
    usual_step = "ask again: what has already been fetched is kept; 'forebay status' shows how the origin does"

    def __init__(
        self,
        shard: str,
        cause: str,
        *,
        next_step: str = "",
        retry_after_s: float | None = None,
        throttled: bool = False,
        answered: bool = False,
        hopeless: bool = False,
    ) -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.retry_after_s = retry_after_s
        self.throttled = throttled
        self.answered = answered
        self.hopeless = hopeless


class OriginTimeout(OriginUnavailable):
    """The origin accepted but sent nothing for too long."""

    status = 504
    title = "Origin timed out"


class CacheError(ForebayError):
    """Internal answers of the cache; ``cache.open`` turns them into a bypass, they never reach a client."""


class CacheFull(CacheError):
    """No room can be granted now: everything else is leased, reserved or needed earlier."""


class FellBehind(CacheError):
    """What a reader was about to read has left its file; it goes on with a body of its own."""


class DiskFailed(CacheError):
    """A write, allocation or read of the cache directory failed. ``errno_name`` is the symbolic errno, as ``ENOSPC``."""

    def __init__(self, operation: str, errno_name: str, detail: str) -> None:
        super().__init__(f"cache disk: {operation} failed with {errno_name}: {detail}")
        self.operation = operation
        self.errno_name = errno_name


class ClientGone(ForebayError):
    """The client closed its connection; a normal end, counted, never logged as an error."""


def bare(error: Caught) -> Caught:
    """What to remember of ``error``, and what to raise of an error that is remembered or told to many: a copy without frames.

    An exception that is raised again and again grows by the frames of each time, and keeps all that stood in them, causes included. Errors
    of others cannot be copied in general: the same object then, without the frames of the time before.
    """
    if not isinstance(error, ForebayError):
        return error.with_traceback(None)
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


def causes(error: BaseException) -> list[BaseException]:
    """What went wrong, out of the groups that task groups put it in, in their order; ``[error]`` for one that is no group."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [cause for part in error.exceptions for cause in causes(part)]
