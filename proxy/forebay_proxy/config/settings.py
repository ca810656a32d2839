"""Frozen settings; the only reader of flags, environment and file.

One field = one flag = one ``FOREBAY_*`` variable = one key of ``forebay.toml``; precedence flag > environment > file > default. Every name,
flag, help text and README line is derived from the fields below, so none of them can drift. ``load`` is a function of its arguments only.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, model_validator

from forebay_proxy.config.settings_file import SettingsFile
from forebay_proxy.config.shared_place import SharedPlace
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import CacheLimit, ShareOfDisk, TotalBytes, parse_duration, parse_limit, parse_share
from forebay_proxy.core.shard import shown_set

__all__ = [
    "PREFIX",
    "Settings",
    "as_flags",
    "as_json",
    "default_text",
    "env_name",
    "field_note",
    "flag_name",
    "has_flag",
    "load",
    "value_text",
]


def _setting(default: Any, help: str, *, metavar: str = "", unset: str = "", flag: bool = True) -> Any:
    """A field; ``unset`` says in words what a default of None or () means, ``flag=False`` keeps the value out of argv."""
    return Field(default, description=help, json_schema_extra={"metavar": metavar, "unset": unset, "flag": flag})


def _listed(value: Any) -> Any:
    """A comma list (how a variable carries several values) as a tuple."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _patterns(value: Any) -> Any:
    # Not at commas: braces hold them, and so may a key.
    return tuple(value.split()) if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _limit(value: Any) -> Any:
    return value if value is None else parse_limit(value)


def _socket(value: Any) -> Any:
    return "" if value in ("", "off") else _home(value)


def _revalidate(value: Any) -> Any:
    if value in ("job", "never"):
        return value
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f"{str(value)!r} is neither 'job', 'never' nor a duration such as 1h") from None


def _endpoint(value: Any) -> Any:
    # The value stays out of the message: people write keys into such URLs.
    if isinstance(value, str) and not re.fullmatch(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?", value):
        raise ValueError("not an http(s) URL without credentials and query, such as https://storage.example.org")
    return value


def _place(value: Any) -> Any:
    return SharedPlace(value) if isinstance(value, str) else value


def _home(value: Any) -> Any:
    try:
        return Path(value).expanduser() if isinstance(value, str) and value else value
    except RuntimeError:
        raise ValueError(f"{value!r} begins with the home of somebody who has none; write the path out") from None


def _homes(value: Any) -> Any:
    listed = _listed(value)
    return tuple(map(_home, listed)) if isinstance(listed, tuple | list) else listed


Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Socket = Annotated[Path | Literal[""] | None, BeforeValidator(_socket)]
Endpoint = Annotated[str | None, BeforeValidator(_endpoint)]
Directory = Annotated[Path | None, BeforeValidator(_home)]
File = Annotated[Path | None, BeforeValidator(_home)]
Limit = Annotated[CacheLimit | None, BeforeValidator(_limit)]
Connections = Annotated[int, Field(ge=1, le=1024)]
Revalidate = Annotated[Literal["job", "never"] | Annotated[float, Field(ge=0)], BeforeValidator(_revalidate)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]
LogFormat = Annotated[Literal["human", "json"], BeforeValidator(_lower)]
Budget = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Share = Annotated[float, BeforeValidator(parse_share), Field(lt=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_patterns)]
Place = Annotated[SharedPlace | None, BeforeValidator(_place)]
Uids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_homes)]


PREFIX = "FOREBAY_"

# Variables that are ours but no settings: what clients inside a job read, and where the file is.
OTHER_VARIABLES = frozenset({"URL", "JOB", "JOB_MADE", "AHEAD", "CONFIG"})
# A Kubernetes Service named "forebay" makes every pod's environment say FOREBAY_PORT=tcp://10.0.0.1:7070 and friends.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://")


def env_name(name: str) -> str:
    """``cache_dir`` -> ``FOREBAY_CACHE_DIR``."""
    return PREFIX + name.upper()


def flag_name(name: str) -> str:
    """``cache_dir`` -> ``--cache-dir``."""
    return "--" + name.replace("_", "-")


def _from_environ(environ: Mapping[str, str], names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """(settings found in FOREBAY_* variables, notices about variables that look like a misspelt one).

    An empty variable is "not given", as everywhere; only ``FOREBAY_SOCKET=`` means something (no socket). A misspelt variable is a notice
    and not an error: environments are inherited from places the reader cannot change.
    """
    by_variable = {name.upper(): name for name in names}
    found: dict[str, str] = {}
    notices: list[str] = []
    for variable, value in environ.items():
        word = variable.removeprefix(PREFIX)
        if word == variable or word in OTHER_VARIABLES or _SERVICE_LINK.fullmatch(word):
            continue
        if word == "PORT" and _SERVICE_LINK_VALUE.match(value):
            notices.append(f"FOREBAY_PORT={value} is a Kubernetes service link, not a setting: ignored")
        elif word in by_variable:
            if value or word == "SOCKET":
                found[by_variable[word]] = value
        elif near := _nearest(word, by_variable, PREFIX):
            notices.append(f"{variable} is not a setting of Forebay: ignored{near}")
    return found, notices


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The known word that was probably meant, as a clause; "" where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


Source = Literal["flag", "environment", "file", "default"]


class Settings(BaseModel):
    """Everything a sidecar can be told. Inside, sizes are bytes and durations seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    # fmt: off
    host: Host = _setting(
        "127.0.0.1", "Address to listen on; another than loopback needs a token and strict origins.", metavar="ADDRESS",
    )
    port: Port | None = _setting(
        None, "Port to listen on; 0: any free one. A taken port that you named is an error.", metavar="PORT",
        unset="7070, else next free",
    )
    socket: Socket = _setting(None, "Unix socket to listen on, of mode 0600; 'off': none.", metavar="PATH", unset="beside the run file")
    cache_dir: Directory = _setting(
        None, "Where shards are stored; a folder on a local disk.", metavar="PATH",
        unset="$SLURM_TMPDIR, $TMPDIR or $XDG_CACHE_HOME, the first on a local disk",
    )
    cache_size: Limit = _setting(
        None, "Most bytes that the cache directory takes; 200GB, 200GiB, 75%.", metavar="SIZE",
        unset="75 % of free space, at most 500 GB; 20 GiB in a container",
    )
    free_floor: Share = _setting(
        0.05, "Share of the disk that stays free; other programs write there too.", metavar="SHARE",
    )
    allow_network_fs: bool = _setting(
        False, "Allow a cache directory on a network file system; it would be slow.",
    )
    allow_origin: Names = _setting(
        (),
        "Origin that may be reached; needed for loopback; with --strict-origins for all but configured endpoints: scheme://host[:port], "
        "s3://bucket, https://*.org, 10.0.0.0/8.", metavar="ORIGIN", unset="any public or private one",
    )
    strict_origins: bool = _setting(False, "Reach only --allow-origin and configured endpoints; off, as only you use it.")
    allow_uid: Uids = _setting(
        (), "Other user id that may connect; it can read whatever your credentials open.", metavar="UID",
        unset="only yours",
    )
    allow_profile: Names = _setting(
        (), "AWS profile that requests may name; each one is another credential.", metavar="NAME",
        unset="AWS_PROFILE only",
    )
    gs_endpoint: Endpoint = _setting(
        None,
        "Where gs:// requests and Google credentials go; private endpoints need it.",
        metavar="URL", unset="Google, or STORAGE_EMULATOR_HOST without credentials",
    )
    gs_anonymous: bool = _setting(
        False, "Read gs:// without credentials; off: with them, if there are any.",
    )
    pass_header: Names = _setting(
        (), "Request header to pass on; Authorization, Cookie and X-* always pass.",
        metavar="NAME", unset="no further ones",
    )
    secret_param: Names = _setting(
        (), "Query parameter that is secret too; neither stored nor shown.",
        metavar="NAME", unset="no further ones",
    )
    file_root: Paths = _setting(
        (), "Directory of file:// shards; URLs open no other files.", metavar="PATH", unset="none",
    )
    token: SecretStr | None = _setting(
        None, "What clients must send as Forebay-Token; no flag, as command lines are public.", unset="none", flag=False,
    )
    revalidate: Revalidate = _setting(
        "job", "When a stored shard is compared with its origin; job (once, by a HEAD), never, or a time as 1h.",
        metavar="job|never|TTL",
    )
    origin_digests: bool = _setting(
        True, "Serve a shard's end only if its origin's digest matches; 0.1 to 1.5 s of processor a GB.",
    )
    verify_every_s: Budget = _setting(
        5.0, "How often one stored segment is verified; 5: 500 GB in 4 days. 0: never.",
        metavar="SECONDS",
    )
    prefetch: bool = _setting(True, "Fetch announced shards ahead; this hides the origin's latency.")
    set: Patterns = _setting(
        (), "Pattern of shards to fetch ahead; for programs that announce nothing.",
        metavar="PATTERN", unset="none",
    )
    shared: Place = _setting(
        None, "S3 place that a cluster's sidecars share; read before origins.",
        metavar="S3-URL", unset="none",
    )
    origin_connections: Connections = _setting(
        64, "Most requests to one origin at once; halved while it throttles.",
        metavar="COUNT",
    )
    connect_timeout_s: Seconds = _setting(
        10.0, "Longest wait for a connection to an origin; several SYN retries fit.", metavar="SECONDS",
    )
    idle_timeout_s: Seconds = _setting(
        15.0, "Longest silence within an answer; then the origin is asked again.", metavar="SECONDS",
    )
    retry_budget_s: Budget = _setting(
        300.0, "How long a fetch keeps asking a failing origin; keep it below NCCL's watchdog.",
        metavar="SECONDS",
    )
    drain_timeout_s: Budget = _setting(
        20.0,
        "How long answers may run on after SIGTERM; closing takes up to 8 s more.",
        metavar="SECONDS",
    )
    idle_exit_s: Seconds | None = _setting(
        None, "Exit after so long without run or reader; 'forebay run' and fb.sidecar() set 60.",
        metavar="SECONDS", unset="never",
    )
    access_log: File = _setting(
        None, "File for a JSON line (0.4 kB) an answer; 'plan --replay' reads it.",
        metavar="FILE", unset="none",
    )
    log_level: LogLevel = _setting("info", "Least severe log lines to write; info: a few lines an hour.", metavar="LEVEL")
    log_format: LogFormat = _setting(
        "human", "How log lines are written; human, or json (an object a line).", metavar="human|json",
    )
    # fmt: on

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
    _notices: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _guarded_when_reachable(self) -> Settings:
        if not _is_loopback(self.host) and not (self.token and self.strict_origins):
            raise ValueError(
                f"--host {self.host} lets other machines in: "
                "that needs FOREBAY_TOKEN (what clients must send) and --strict-origins with --allow-origin"
            )
        return self

    def source_of(self, name: str) -> Source:
        """Where the value of field ``name`` came from."""
        return self._sources.get(name, "default")

    @property
    def notices(self) -> tuple[str, ...]:
        """What the person who wrote the settings should hear once: the file that was read, misspelt variables, an exposed token."""
        return self._notices


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: SettingsFile | None = None) -> Settings:
    """Settings from ``flags`` (field name -> value; None or () is "not given"), ``environ`` and ``file``, of which an earlier one counts.

    Raises ``ConfigError`` naming every wrong value and where it was written.
    """
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    variables, notices = _from_environ(environ, Settings.model_fields)
    problems, merged = list[str](), dict[str, _Written]()
    if file is not None:
        unknown = [name for name in file.table if name not in Settings.model_fields]
        problems += [f"{file.path} has an unknown key {name!r}{_nearest(name, Settings.model_fields)}" for name in unknown]
        merged = {name: _Written("file", value, f"{name} in {file.path}") for name, value in file.table.items() if name not in unknown}
    merged.update({name: _Written("environment", value, env_name(name)) for name, value in variables.items()})
    merged.update({name: _Written("flag", value, flag_name(name)) for name, value in given.items()})
    try:
        settings = Settings.model_validate({name: written.value for name, written in merged.items()})
    except ValidationError as error:
        problems += _problems(error, merged)
    if problems:
        raise ConfigError("; ".join(problems), next_step="mend or remove what is named; docs/settings.md has every setting")
    settings._sources = {name: written.source for name, written in merged.items()}
    settings._notices = (*notices, *(file.notices if file else ()))
    return settings


@dataclass(frozen=True, slots=True)
class _Written:
    """A value as it was given, and where."""

    source: Source
    value: Any
    where: str

    def shown(self, name: str) -> str:
        # An address that is refused may be so because somebody wrote a password into it.
        return self.where if name == "token" or "@" in str(self.value) else f"{self.where} = {str(self.value)!r}"


def _problems(error: ValidationError, merged: Mapping[str, _Written]) -> list[str]:
    """One text a wrong field: the place of the value, the value, and the values that are allowed."""
    found: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        name = str(item["loc"][0]) if item["loc"] else ""
        message = "write on or off" if item["type"] == "bool_parsing" else item["msg"].removeprefix("Value error, ")
        if name in merged:
            message = f"{merged[name].shown(name)}: {message}"
        found.setdefault(name, message)  # a union reports once per member; the first is the one people mean
    return list(found.values())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


MOST_SET = 1 << 16  # characters of a pattern, as the sidecar takes it


def field_note(name: str, key: str) -> str:
    """What a field says about itself beside its description: ``metavar``, ``unset``, or "" when it says nothing."""
    extra = Settings.model_fields[name].json_schema_extra
    return str(extra.get(key, "")) if isinstance(extra, dict) else ""


def has_flag(name: str) -> bool:
    """Whether the field may be given on a command line."""
    return field_note(name, "flag") == "True"


def default_text(name: str) -> str:
    """The default as a person reads it."""
    default = Settings.model_fields[name].default
    if default is None or default == ():
        return field_note(name, "unset")
    return value_text(default)


def value_text(value: Any) -> str:
    """A plain value as a person writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json(settings: Settings) -> dict[str, dict[str, Any]]:
    """Each setting's ``value``, as JSON can say it and without secrets, and its ``source``: flag, environment, file or default."""
    return {name: {"value": _told(settings, name), "source": settings.source_of(name)} for name in Settings.model_fields}


def as_flags(settings: Settings, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str] | None:
    """By flag what a shell is given for ``settings``, ``rows`` being its ``as_json``: what that somebody chose and a flag may say.

    None where it cannot be said without what is a secret, or may name one: without its token another sidecar would not begin.
    """
    shared_options = settings.shared is not None and settings.shared.options
    if settings.token is not None or shared_options or any(shown_set(text, MOST_SET) != text for text in settings.set):
        return None
    found: dict[str, str] = {}
    for name, row in rows.items():
        value, flag = row["value"], flag_name(name)
        if row["source"] == "default" or not has_flag(name):
            continue
        if isinstance(value, bool):
            found[flag] = flag if value else f"--no-{name.replace('_', '-')}"
        elif value is not None:
            texts = ["off" if each == "" else value_text(each) for each in (value if isinstance(value, list) else [value])]
            found[flag] = " ".join(f"{flag} {shlex.quote(each)}" for each in texts)
    return found


def _told(settings: Settings, name: str) -> Any:
    """A pattern may hold what proves who asks: a signature, a header of its command."""
    return [shown_set(text, MOST_SET) for text in settings.set] if name == "set" else _plain(getattr(settings, name))


def _plain(value: Any) -> Any:
    """As JSON can say it: sizes as bytes or a percentage, secrets masked."""
    match value:
        case SecretStr():
            return "(set)"
        case TotalBytes(count):
            return count
        case ShareOfDisk(ratio):
            return f"{ratio * 100:g}%"
        case Path() | SharedPlace():
            return str(value)
        case tuple():
            return [_plain(item) for item in value]
    return value
