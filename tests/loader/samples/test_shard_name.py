"""How tables call a shard, however it is written."""

from __future__ import annotations

import pytest

from forebay_loader.samples.shard_name import shard_name


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/1.tar", "s3://bucket/1.tar"),
        ("https://Host.example:443/1.tar?X-Amz-Signature=secret", "https://host.example/1.tar"),
        ("https://user:secret@host.example/1.tar", "https://host.example/1.tar"),
        ("pipe:curl -s -f -L -g -H 'Authorization: Bearer secret' https://host.example/1.tar", "https://host.example/1.tar"),
        ("pipe:aws s3 cp s3://bucket/1.tar -", "s3://bucket/1.tar"),
        ("/data/1.tar", "/data/1.tar"),
        ("ftp://h/1.tar?secret", "ftp://h/1.tar"),
        ("s3://?secret", "s3://"),
    ],
)
def test_one_shard_one_name(url: str, name: str) -> None:
    """The scan and the training may write it differently."""
    assert shard_name(url) == name


def test_a_command_that_only_a_shell_understands_is_hashed() -> None:
    """It may hold a secret, and still names the same shard each time."""
    name = shard_name("pipe:zcat secret.tar.gz")
    assert name.startswith("pipe:")
    assert "secret" not in name
    assert shard_name("pipe:zcat secret.tar.gz") == name != shard_name("pipe:zcat other.tar.gz")
