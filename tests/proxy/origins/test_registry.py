"""The list of what asks for kinds of origins by name."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.origins import registry
from forebay_proxy.origins.http_client import OverHttp
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.registry import Origins

ROOT = Path(__file__).parents[3]


def test_every_module_that_names_a_scheme_is_listed() -> None:
    """Whoever adds a kind of origin finds in one list what asks for kinds by name, as for ``gs`` and ``hf``."""
    proxy, loader = (ROOT / "proxy/forebay_proxy", ROOT / "loader/forebay_loader")
    naming = {
        str(path.relative_to(room))
        for room in (proxy, loader)
        for path in room.rglob("*.py")
        if re.search(r"""["'(|](gs|hf)(["'|]|://["'])""", path.read_text("utf-8"))
    }
    of_one_cloud = {"origins/cloud/gs.py", "origins/cloud/hf.py", "origins/registry.py"}
    assert naming - of_one_cloud == set(re.findall(r"``([\w/]+/\w+\.py)``", registry.__doc__ or "")) - {"cloud/az.py"}


async def test_all_but_files_come_over_http() -> None:
    """So each can be asked for its clock (``forebay doctor``)."""
    origins = Origins.of(Settings(), {}, Events(), Egress.of({}, "i"))
    try:
        assert {scheme for scheme, origin in origins.by_scheme.items() if not isinstance(origin, OverHttp)} == {"file"}
    finally:
        await origins.aclose()
