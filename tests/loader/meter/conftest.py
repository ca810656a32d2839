"""A meter in torch's own loaders, gone when the test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay_loader.meter.clock.stall_clock import CLOCK
from forebay_loader.meter.process_page import process_page
from forebay_loader.meter.stalls import install, remove


@pytest.fixture
def metered() -> Iterator[None]:
    CLOCK.renew()
    install()
    yield
    remove()
    process_page.end()
    CLOCK.renew()
