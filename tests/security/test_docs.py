"""docs/security.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_proxy.cache.readers import reader
from forebay_proxy.cache.resident.entry import PROOF_S
from forebay_proxy.config.settings import Settings, env_name
from forebay_proxy.policy.plans import reader_plan
from forebay_proxy.server.http import connection, framing
from forebay_proxy.wire.urls.shard_url import MAX_URL_BYTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_flag_that_opens_something_is_named() -> None:
    """A new ``allow`` setting belongs on this page."""
    opening = {
        name for name in Settings.model_fields if name.startswith(("allow_", "pass_")) or name in ("file_root", "strict_origins", "host")
    }
    assert [name for name in sorted(opening) if f"--{name.replace('_', '-')}" not in PAGE] == []


def test_every_variable_named_exists() -> None:
    """Of ours; the others are other people's."""
    named = set(re.findall(r"FOREBAY_[A-Z_]+", PAGE))
    assert named
    assert named <= {env_name(name) for name in Settings.model_fields} | {"FOREBAY_CONFIG"}


def test_every_number_is_the_codes() -> None:
    """Bounds on the page are the bounds that hold."""
    said = [
        f"{reader_plan.MOST_READERS:,} readers", f"{reader_plan.MOST_SHARDS:,} shards",
        f"{connection.MOST_CONNECTIONS:,}",
        f"{MAX_URL_BYTES // 1024} KiB", f"{connection.MAX_FIELD_BYTES // 1024} KiB",
        f"{connection.MAX_FIELDS} of them",
        f"nothing for {reader.REST_S:g} s", f"closed {connection.IDLE_S:g} s after",
        f"body may pause for at most {framing.BODY_SILENCE_S:g} s",
        f"{PROOF_S / 60:g} minutes",
    ]  # fmt: skip
    flat = re.sub(r"\s+", " ", PAGE)
    assert [number for number in said if number not in flat] == []


def test_the_model_is_one_page() -> None:
    """What a person reads before trusting us."""
    assert len(PAGE.splitlines()) < 110
