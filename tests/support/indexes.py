"""A tar in memory as the loader gets it: its sample index, its descriptor, and what webdataset reads of it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from forebay_loader.samples.tar import Samples
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_proxy.wire.protocol.fd import FdAnswer
from forebay_proxy.wire.tar.sample_index import IndexBuilder, SampleIndex, decode, encode
from forebay_proxy.wire.tar.scan import scan

__all__ = ["URL", "by_webdataset", "indexed", "passed", "samples_of"]


URL = "s3://b/a.tar"


def samples_of(sources: Iterable[dict[str, Any]], **how: Any) -> Iterator[dict[str, Any]]:
    """The samples of ``sources``, read as ``Samples`` is asked."""
    return iter(Samples(**how).read(sources))


def indexed(tar: bytes) -> SampleIndex:
    """As the sidecar gives it. Raises ``NotIndexable``."""
    builder = IndexBuilder()
    for member in scan(lambda at, size: tar[at : at + size], len(tar)):
        builder.add(*member)
    return decode(encode(builder.finished(len(tar))))


def by_webdataset(tar: bytes, **files: Any) -> list[dict[str, Any]]:
    """The same tar by webdataset alone."""
    tariterators = pytest.importorskip("webdataset.tariterators")
    files = tariterators.tar_file_expander([{"url": URL, "stream": io.BytesIO(tar)}], **files)
    return [sample for sample in tariterators.group_by_keys(files) if sample]


def passed(content: bytes, go_on: Any = None) -> Descriptor:
    """``content`` as a shard that is here as a file; there is no lease on it."""
    file = os.memfd_create("passed")
    os.write(file, content)
    return Descriptor(None, 0, file, FdAnswer(200, len(content), '"v1"'), "https://o/shard.tar", go_on)
