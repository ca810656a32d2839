"""Whether two environments lead to the same data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.node.runfile import fingerprint, relevant

KEY = bytes(range(32))
ENVIRON = {"AWS_PROFILE": "train", "HF_TOKEN": "hf_x", "https_proxy": "http://proxy:3128", "PATH": "/bin"}


@pytest.mark.parametrize(
    "name", ["AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HF_ENDPOINT", "https_proxy", "SSL_CERT_FILE"]
)
def test_what_decides_which_data_is_read_changes_it(name: str) -> None:
    """Another credential, endpoint, upstream proxy or trust store is another fingerprint."""
    assert fingerprint({**ENVIRON, name: "other"}, KEY) != fingerprint(ENVIRON, KEY)


@pytest.mark.parametrize("name", ["PATH", "HOME", "FOREBAY_URL", "GOPEN_REWRITE", "AWS_PAGER", "HF_HUB_DISABLE_PROGRESS_BARS"])
def test_what_does_not_leaves_it(name: str) -> None:
    """Variables that change no byte change no fingerprint."""
    assert fingerprint({**ENVIRON, name: "other"}, KEY) == fingerprint(ENVIRON, KEY)


def test_what_run_adds_for_its_command_leaves_it() -> None:
    """A run inside a run finds the same sidecar: loopback in NO_PROXY says nothing about origins."""
    inner = {**ENVIRON, "NO_PROXY": "127.0.0.1,localhost,::1", "no_proxy": "127.0.0.1,localhost,::1"}
    assert fingerprint(inner, KEY) == fingerprint(ENVIRON, KEY)
    assert fingerprint({**inner, "no_proxy": "127.0.0.1,.corp"}, KEY) != fingerprint(ENVIRON, KEY)


def test_proxy_names_are_case_blind_and_order_does_not_count() -> None:
    """HTTPS_PROXY is https_proxy, and a NO_PROXY list is a set."""
    assert relevant({"HTTPS_PROXY": "a"}) == relevant({"https_proxy": "a"})
    assert relevant({"HTTPS_PROXY": "a", "https_proxy": "b"}) == {"https_proxy": "b"}
    assert fingerprint({"no_proxy": "b, a"}, KEY) == fingerprint({"NO_PROXY": "a,b"}, KEY)


def test_empty_is_unset() -> None:
    """A variable set to nothing is no setting; bytes that are no text are one."""
    assert fingerprint({"AWS_PROFILE": ""}, KEY) == fingerprint({}, KEY) != fingerprint({"AWS_PROFILE": "\udcff"}, KEY)


def test_names_and_values_do_not_run_together() -> None:
    """Bytes cannot move from a name to its value or to the next variable."""
    assert fingerprint({"AWS_A": "B=AWS_C"}, KEY) != fingerprint({"AWS_A": "B", "AWS_C": ""}, KEY)
    assert fingerprint({"AWS_A": "xAWS_By"}, KEY) != fingerprint({"AWS_A": "x", "AWS_B": "y"}, KEY)


@given(
    st.dictionaries(st.sampled_from(["AWS_PROFILE", "AWS_REGION", "HF_TOKEN", "http_proxy"]), st.text(max_size=20)),
    st.binary(min_size=32, max_size=32),
)
def test_it_is_short_stable_and_shows_nothing(environ: dict[str, str], key: bytes) -> None:
    """16 hex digits, equal for equal input, and another key gives another one: nobody can try values against a stored fingerprint."""
    found = fingerprint(environ, key)
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert found == fingerprint(dict(reversed(environ.items())), key)
    assert found != fingerprint(environ, bytes(32) if key != bytes(32) else KEY)
