"""What of a person's settings a running sidecar does not have."""

from __future__ import annotations

from forebay_proxy.cli.run.differences import differences, unknown_origins
from forebay_proxy.config.settings import load
from forebay_proxy.config.settings_text import as_json


def test_given_settings_that_differ_are_named_with_both_values() -> None:
    """Defaults of ours claim nothing; the same value differs not."""
    running = as_json(load({"cache_size": "100MB", "prefetch": False}, {}, []))
    mine = load({"cache_size": "1TB", "port": "9999", "prefetch": False}, {"FOREBAY_REVALIDATE": "never"}, [])
    assert differences(mine, running) == [
        "--port (default), not 9999", "--cache-size 100 MB, not 1.0 TB", "--revalidate job, not never",
    ]  # fmt: skip
    assert differences(load({}, {}, []), running) == []


def test_how_long_it_stays_is_its_starters_business() -> None:
    """And origins are handed over, not compared."""
    running = as_json(load({"idle_exit_s": "60", "allow_origin": ("http://127.0.0.1:1",)}, {}, []))
    mine = load({"idle_exit_s": "5", "allow_origin": ("http://127.0.0.1:1", "http://127.0.0.1:2")}, {}, [])
    assert differences(mine, running) == []
    assert unknown_origins(mine, running) == ["http://127.0.0.1:2"]
