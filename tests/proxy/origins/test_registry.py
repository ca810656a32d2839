"""The list of what asks for kinds of origins by name."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_proxy.origins import registry

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
