"""What the commands of ``pipe:`` strings would print, as a URL and headers: a table entry and a small function each. Pure, runs nothing.

The rule for every option: it changes no byte (skipped), it maps to an option of ours (kept), or the whole command is left alone. A command
that is certainly a slip (``aws s3 cp`` without its ``-``) raises ``InvalidShardUrl`` with the mend, since it fails everywhere.
"""

from __future__ import annotations

import posixpath
import re
from typing import Callable, Mapping

from forebay_proxy.wire.commands.curl import curl, wget
from forebay_proxy.wire.commands.shell import Command, NotRewritten, Words, flag_table, sort_words
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import ShardUrl, file_url, object_url

__all__ = ["understand"]

_STDOUT = ("-", "/dev/stdout")
_GLOB = re.compile(r"[*?\[\]]")

_AWS = flag_table(
    skip="--quiet --only-show-errors --no-progress --debug --no-paginate --no-cli-pager --no-cli-auto-prompt --no-guess-mime-type "
    "--ignore-glacier-warnings --force-glacier-transfer",
    skip_value="--cli-read-timeout --cli-connect-timeout --output --color --checksum-mode",
    keep={
        "--endpoint-url": "endpoint=", "--profile": "profile=", "--region": "region=", "--no-sign-request": "unsigned",
        "--request-payer": "requester_pays?", "--bucket": "bucket=", "--key": "key=", "--version-id": "versionId=",
    },
)  # fmt: skip
_S5CMD = flag_table(
    skip="--raw --use-list-objects-v1",
    skip_value="-r --retry-count --log --numworkers -c --concurrency -p --part-size --stat",
    keep={
        "--endpoint-url": "endpoint=", "--profile": "profile=", "--no-sign-request": "unsigned", "--request-payer": "requester_pays=",
        "--version-id": "versionId=",
    },
)  # fmt: skip
# Without -c, --host or keys on the command line: the endpoint and credentials of ~/.s3cfg become the sidecar's own.
_S3CMD = flag_table(
    skip="-q --quiet -f --force --no-progress --no-check-md5", keep={"--region": "region=", "--requester-pays": "requester_pays"}
)
_GSUTIL = flag_table(skip="-m -q", skip_value="", keep={"-o": "setting="})
_GCLOUD = flag_table(skip="-q --quiet --no-user-output-enabled", skip_value="--verbosity")

# Variables before a command that say what an option of ours says ("": nothing about bytes). Where two say the same, the later row wins.
_AWS_VARIABLES = {
    "AWS_PROFILE": "profile", "AWS_DEFAULT_PROFILE": "profile", "AWS_DEFAULT_REGION": "region", "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint", "AWS_ENDPOINT_URL_S3": "endpoint",
    "AWS_MAX_ATTEMPTS": "", "AWS_RETRY_MODE": "", "AWS_EC2_METADATA_DISABLED": "", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "", "AWS_PAGER": "",
}  # fmt: skip
_S5CMD_VARIABLES = {"AWS_PROFILE": "profile", "AWS_REGION": "region", "S3_ENDPOINT_URL": "endpoint"}
_VARIABLES = {"aws": _AWS_VARIABLES, "s5cmd": _S5CMD_VARIABLES}


def understand(command: Command) -> tuple[ShardUrl, tuple[tuple[str, str], ...]]:
    """Where the bytes that ``command`` prints live, and the headers it sends. Raises ``NotRewritten`` or ``InvalidShardUrl``."""
    name = posixpath.basename(command.words[0])
    if name not in _COMMANDS or set(command.environ) - set(_VARIABLES.get(name, ())):
        raise NotRewritten
    return _COMMANDS[name](command)


def _aws(command: Command) -> ShardUrl:
    words = sort_words(command.words[1:], _AWS)
    verb = tuple(words.operands[:2])
    if verb == ("s3", "cp") and not {"bucket", "key", "versionId"} & set(words.values):
        return _aws_cp(words.operands[2:], _options(command, words))
    if verb == ("s3api", "get-object"):
        return _aws_get_object(words, _options(command, words))
    raise NotRewritten


def _aws_cp(places: list[str], options: Mapping[str, str]) -> ShardUrl:
    if len(places) == 1 and places[0].startswith("s3://"):
        raise InvalidShardUrl("aws s3 cp prints an object only with '-' as its target: pipe:aws s3 cp s3://bucket/shard.tar -")
    if len(places) != 2 or places[1] not in _STDOUT:
        raise NotRewritten
    return _object("s3", places[0], options)


def _aws_get_object(words: Words, options: Mapping[str, str]) -> ShardUrl:
    bucket, key = words.last("bucket"), words.last("key")
    if not bucket or not key:
        raise InvalidShardUrl("aws s3api get-object needs --bucket and --key: … --bucket bucket --key shard.tar /dev/stdout")
    if words.operands[2:] != ["/dev/stdout"]:
        raise NotRewritten
    return _object("s3", f"s3://{bucket}/{key}", options)


def _s5cmd(command: Command) -> ShardUrl:
    raw = "--raw" in command.words
    words = sort_words(command.words[1:], _S5CMD)
    place = _only(words.operands, "cat", "s5cmd cat needs an object: pipe:s5cmd cat s3://bucket/shard.tar")
    if not raw and _GLOB.search(place):
        raise NotRewritten
    return _object("s3", place, _options(command, words))


def _s3cmd(command: Command) -> ShardUrl:
    words = sort_words(command.words[1:], _S3CMD)
    if words.operands[:1] != ["get"]:
        raise NotRewritten
    if len(words.operands) == 2:
        raise InvalidShardUrl("s3cmd get prints an object only with '-' as its target: pipe:s3cmd get s3://bucket/shard.tar -")
    if len(words.operands) != 3 or words.operands[2] not in _STDOUT:
        raise NotRewritten
    return _object("s3", words.operands[1], _options(command, words))


def _gsutil(command: Command) -> ShardUrl:
    words = sort_words(command.words[1:], _GSUTIL)
    if not all(setting.lower().startswith("gsutil:parallel_") for setting in words.every("setting")):
        raise NotRewritten  # another setting may name a host or an account
    return _gs(_only(words.operands, "cat", "gsutil cat needs an object: pipe:gsutil cat gs://bucket/shard.tar"))


def _gcloud(command: Command) -> ShardUrl:
    words = sort_words(command.words[1:], _GCLOUD)
    operands = words.operands[1:] if words.operands[:1] in (["alpha"], ["beta"]) else words.operands
    if operands[:1] != ["storage"]:
        raise NotRewritten
    return _gs(_only(operands[1:], "cat", "gcloud storage cat needs an object: pipe:gcloud storage cat gs://bucket/shard.tar"))


def _cat(command: Command) -> ShardUrl:
    path = _only(("cat", *command.words[1:]), "cat", "cat needs a file: pipe:cat /nas/shard.tar")
    if not path.startswith("/"):
        raise NotRewritten  # relative to a working directory that is not the sidecar's; or an option
    try:
        return file_url(path)
    except InvalidShardUrl as error:
        raise NotRewritten(str(error)) from None


def _only(operands: list[str] | tuple[str, ...], verb: str, mend: str) -> str:
    """The one operand after ``verb``."""
    if not operands or operands[0] != verb or len(operands) > 2:
        raise NotRewritten  # another verb, or several objects in a row
    if len(operands) == 1:
        raise InvalidShardUrl(mend)
    return operands[1]


def _gs(place: str) -> ShardUrl:
    if _GLOB.search(place) or "#" in place:  # gsutil expands wildcards, and reads #123 as a generation
        raise NotRewritten
    return _object("gs", place, {})


def _object(scheme: str, place: str, options: Mapping[str, str]) -> ShardUrl:
    """The object that a command line names by a literal URL: here nothing after a ``?`` is an option."""
    found, _, rest = place.partition("://")
    if found != scheme:
        raise NotRewritten
    bucket, _, key = rest.partition("/")
    if not bucket or not key:
        raise InvalidShardUrl(f"the command names no object; write {scheme}://bucket/path/to/shard.tar")
    try:
        return object_url(scheme, bucket, key, options)
    except InvalidShardUrl as error:
        raise NotRewritten(str(error)) from None  # an access point's ARN, a key with '..': fine for the command, not for a URL


def _options(command: Command, words: Words) -> dict[str, str]:
    """Our s3 options from the variables before the command and its flags; a flag outweighs a variable."""
    known = _VARIABLES.get(posixpath.basename(command.words[0]), {})
    options = {name: command.environ[variable] for variable, name in known.items() if command.environ.get(variable)}
    for name in ("endpoint", "profile", "region", "versionId"):
        options[name] = words.last(name) or options.get(name, "")
    options.update({name: "1" for name in ("unsigned", "requester_pays") if name in words.values})
    options.pop("", None)
    return {name: value for name, value in options.items() if value}


def _bare(place: Callable[[Command], ShardUrl]) -> Callable[[Command], tuple[ShardUrl, tuple[tuple[str, str], ...]]]:
    """A command that sends no headers of its own."""
    return lambda command: (place(command), ())


_COMMANDS: dict[str, Callable[[Command], tuple[ShardUrl, tuple[tuple[str, str], ...]]]] = {
    "aws": _bare(_aws),
    "cat": _bare(_cat),
    "curl": curl,
    "gcloud": _bare(_gcloud),
    "gsutil": _bare(_gsutil),
    "s3cmd": _bare(_s3cmd),
    "s5cmd": _bare(_s5cmd),
    "wget": wget,
}
