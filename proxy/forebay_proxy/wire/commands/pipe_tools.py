"""What the commands of ``pipe:`` strings would print, as a URL and headers: a row of a table for each tool. Pure, runs nothing.

The rule for every option: it changes no byte (skipped), it maps to an option of ours (kept), or the whole command is left alone. A command
that is certainly a slip (``aws s3 cp`` without its ``-``) raises ``InvalidShardUrl`` with the mend, since it fails everywhere.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Mapping, Optional

from forebay_proxy.wire.commands.curl import STDOUT, curl, wget
from forebay_proxy.wire.commands.shell import Command, NotRewritten, Words, flag_table, sort_words
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, file_url, object_url

__all__ = ["understand"]

_GLOB = re.compile(r"[*?\[\]]")


@dataclass(frozen=True)
class _Tool:
    """``verb``, then an object of ``scheme``, and where ``target`` is set "-"; ``mend``: what to write where one of them is missing.

    ``variables`` may stand before the command and say what an option of ours says ("": nothing about bytes); of two that say the same the
    later row wins. ``globs``: it would expand an object's wildcards, unless it has this option.
    """

    verb: tuple[str, ...]
    scheme: str
    flags: Mapping[str, str]
    mend: str
    target: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    globs: Optional[str] = None


_TOOLS = {
    "aws": _Tool(
        ("s3", "cp"), "s3",
        flag_table(
            skip="--quiet --only-show-errors --no-progress --debug --no-paginate --no-cli-pager --no-cli-auto-prompt --no-guess-mime-type "
            "--ignore-glacier-warnings --force-glacier-transfer",
            skip_value="--cli-read-timeout --cli-connect-timeout --output --color --checksum-mode",
            keep={
                "--endpoint-url": "endpoint=", "--profile": "profile=", "--region": "region=", "--no-sign-request": "unsigned",
                "--request-payer": "requester_pays?", "--bucket": "bucket=", "--key": "key=", "--version-id": "versionId=",
            },
        ),
        "aws s3 cp prints an object only with '-' as its target: pipe:aws s3 cp s3://bucket/shard.tar -", target=True,
        variables={
            "AWS_PROFILE": "profile", "AWS_DEFAULT_PROFILE": "profile", "AWS_DEFAULT_REGION": "region", "AWS_REGION": "region",
            "AWS_ENDPOINT_URL": "endpoint", "AWS_ENDPOINT_URL_S3": "endpoint", "AWS_MAX_ATTEMPTS": "", "AWS_RETRY_MODE": "",
            "AWS_EC2_METADATA_DISABLED": "", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "", "AWS_PAGER": "",
        },
    ),
    "s5cmd": _Tool(
        ("cat",), "s3",
        flag_table(
            skip="--raw --use-list-objects-v1",
            skip_value="-r --retry-count --log --numworkers -c --concurrency -p --part-size --stat",
            keep={
                "--endpoint-url": "endpoint=", "--profile": "profile=", "--no-sign-request": "unsigned",
                "--request-payer": "requester_pays=", "--version-id": "versionId=",
            },
        ),
        "s5cmd cat needs an object: pipe:s5cmd cat s3://bucket/shard.tar", globs="--raw",
        variables={"AWS_PROFILE": "profile", "AWS_REGION": "region", "S3_ENDPOINT_URL": "endpoint"},
    ),
    # Without -c, --host or keys on the command line: the endpoint and credentials of ~/.s3cfg become the sidecar's own.
    "s3cmd": _Tool(
        ("get",), "s3",
        flag_table(
            skip="-q --quiet -f --force --no-progress --no-check-md5", keep={"--region": "region=", "--requester-pays": "requester_pays"}
        ),
        "s3cmd get prints an object only with '-' as its target: pipe:s3cmd get s3://bucket/shard.tar -", target=True,
    ),
    "gsutil": _Tool(
        ("cat",), "gs", flag_table(skip="-m -q", keep={"-o": "setting="}),
        "gsutil cat needs an object: pipe:gsutil cat gs://bucket/shard.tar", globs="",
    ),
    "gcloud": _Tool(
        ("storage", "cat"), "gs", flag_table(skip="-q --quiet --no-user-output-enabled", skip_value="--verbosity"),
        "gcloud storage cat needs an object: pipe:gcloud storage cat gs://bucket/shard.tar", globs="",
    ),
}  # fmt: skip


def understand(command: Command) -> tuple[ShardUrl, tuple[tuple[str, str], ...]]:
    """Where the bytes that ``command`` prints live, and the headers it sends. Raises ``NotRewritten`` or ``InvalidShardUrl``."""
    name = posixpath.basename(command.words[0])
    tool = _TOOLS.get(name)
    if tool is not None and not set(command.environ) - set(tool.variables):
        return _from_store(tool, command), ()
    if command.environ:
        raise NotRewritten
    if name in ("curl", "wget"):
        return (curl if name == "curl" else wget)(command)
    if name == "cat":
        return _file(command.words[1:]), ()
    raise NotRewritten


def _from_store(tool: _Tool, command: Command) -> ShardUrl:
    words = sort_words(command.words[1:], tool.flags)
    operands = words.operands
    if tool.verb[0] == "storage" and operands[:1] in (["alpha"], ["beta"]):
        operands = operands[1:]
    if operands[:2] == ["s3api", "get-object"] and tool.verb[0] == "s3":
        return _object("s3", _object_of_flags(words), _options(tool, command, words))
    places = operands[len(tool.verb) :]
    if tuple(operands[: len(tool.verb)]) != tool.verb or {"bucket", "key"} & set(words.values):
        raise NotRewritten
    if "versionId" in words.values and tool.target:  # aws s3 cp knows none
        raise NotRewritten
    if (tool.target and len(places) == 1 and places[0].startswith("s3://")) or not (tool.target or places):
        raise InvalidShardUrl(tool.mend)
    if len(places) != 1 + tool.target or (tool.target and places[1] not in STDOUT):
        raise NotRewritten  # printed elsewhere, or several objects in a row
    if tool.globs is not None and tool.globs not in command.words and _GLOB.search(places[0]):
        raise NotRewritten
    if tool.scheme == "gs" and "#" in places[0]:  # a generation
        raise NotRewritten
    if not all(setting.lower().startswith("gsutil:parallel_") for setting in words.every("setting")):
        raise NotRewritten  # another setting may name a host or an account
    return _object(tool.scheme, places[0], _options(tool, command, words))


def _object_of_flags(words: Words) -> str:
    bucket, key = words.last("bucket"), words.last("key")
    if not bucket or not key:
        raise InvalidShardUrl("aws s3api get-object needs --bucket and --key: … --bucket bucket --key shard.tar /dev/stdout")
    if words.operands[2:] != ["/dev/stdout"]:
        raise NotRewritten
    return f"s3://{bucket}/{key}"


def _file(words: tuple[str, ...]) -> ShardUrl:
    if not words:
        raise InvalidShardUrl("cat needs a file: pipe:cat /nas/shard.tar")
    if len(words) > 1 or not words[0].startswith("/"):
        raise NotRewritten  # several; relative to a working directory that is not the sidecar's; or an option
    try:
        return file_url(words[0])
    except InvalidShardUrl as error:
        raise NotRewritten(str(error)) from None


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


def _options(tool: _Tool, command: Command, words: Words) -> dict[str, str]:
    """Our s3 options from the variables before the command and its flags; a flag outweighs a variable."""
    options = {name: command.environ[variable] for variable, name in tool.variables.items() if command.environ.get(variable)}
    for name in ("endpoint", "profile", "region", "versionId"):
        options[name] = words.last(name) or options.get(name, "")
    options.update({name: "1" for name in ("unsigned", "requester_pays") if name in words.values})
    options.pop("", None)
    return {name: value for name, value in options.items() if value}
