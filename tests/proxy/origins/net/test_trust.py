"""trust.py: which certificate authorities count."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from support.tls import Authority

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.egress import Trust


def test_without_a_variable_the_client_has_its_own() -> None:
    """True is the client's word for verified by the system's authorities."""
    assert Trust.of({}).everywhere is True
    assert Trust.of({}).sdk is True


def test_a_bundle_is_trusted_and_always_verified(tmp_path: Path) -> None:
    """SSL_CERT_FILE counts for everything, AWS_CA_BUNDLE for s3 alone."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    trust = Trust.of({"SSL_CERT_FILE": str(Authority(one).bundle), "AWS_CA_BUNDLE": str(Authority(two).bundle)})
    contexts = trust.everywhere, trust.sdk
    assert contexts[0] is not contexts[1]
    for context in contexts:
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert len(context.get_ca_certs()) == 1


def test_without_a_bundle_of_its_own_s3_trusts_what_all_trust(tmp_path: Path) -> None:
    """SSL_CERT_FILE is enough."""
    trust = Trust.of({"SSL_CERT_FILE": str(Authority(tmp_path).bundle)})
    assert trust.sdk is trust.everywhere


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE"])
@pytest.mark.parametrize("what", ["absent", "empty", "nonsense"])
def test_a_bad_bundle_ends_the_start(tmp_path: Path, name: str, what: str) -> None:
    """OpenSSL would say nothing, and every origin would fail for a reason nobody sees."""
    path = tmp_path / "bundle"
    if what != "absent":
        path.write_text("" if what == "empty" else "no certificate")
    with pytest.raises(ConfigError, match=f"{name} names {path}"):
        Trust.of({name: str(path)})


def test_directories_are_taken(tmp_path: Path) -> None:
    """SSL_CERT_DIR may name several, AWS_CA_BUNDLE may be one."""
    assert isinstance(Trust.of({"SSL_CERT_DIR": f"{tmp_path}:{tmp_path}"}).everywhere, ssl.SSLContext)
    assert isinstance(Trust.of({"AWS_CA_BUNDLE": str(tmp_path)}).sdk, ssl.SSLContext)
    with pytest.raises(ConfigError, match="SSL_CERT_DIR"):
        Trust.of({"SSL_CERT_DIR": f"{tmp_path}:{tmp_path}/absent"})
