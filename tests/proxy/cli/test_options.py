"""Options made from fields, and fields made options again for a sidecar that run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.cli.options import as_arguments, settings_options
from forebay_proxy.config.settings import load

FLAGS = st.fixed_dictionaries({}, optional={
    "cache_size": st.sampled_from(["200GB", "75%"]), "prefetch": st.booleans(), "strict_origins": st.booleans(),
    "allow_origin": st.lists(st.sampled_from(["s3://a", "https://b.example"]), min_size=1).map(tuple),
    "idle_exit_s": st.sampled_from(["60", "5m"]), "socket": st.just("off"), "port": st.sampled_from(["0", "7071"]),
})  # fmt: skip


@given(FLAGS)
def test_flags_travel_to_another_serve(flags: dict[str, Any]) -> None:
    """What run was told, the sidecar it starts is told: the same settings on both sides."""
    received: dict[str, Any] = {}

    @click.command()
    @settings_options
    def there(**given: Any) -> None:
        received.update(given)

    there.main(as_arguments(flags, None), standalone_mode=False)
    assert load(received, {}) == load(flags, {})


def test_the_file_travels_too() -> None:
    """--config is handed on as it was given."""
    assert as_arguments({}, Path("/x.toml")) == ["--config", "/x.toml"]
