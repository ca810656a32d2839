"""The origins of one sidecar."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_proxy.core.events import Events
from forebay_proxy.origins import registry
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.registry import Origins
from forebay_proxy.wire.urls.shard_url import SCHEMES

ROOT = Path(__file__).parents[3]


async def test_every_scheme_that_a_shard_may_have_is_served() -> None:
    """Nobody looks again whether there is an origin for it."""
    origins = Origins.create(guard=Guard(), events=Events())
    assert set(origins.by_scheme) == set(SCHEMES)
    await origins.aclose()


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
