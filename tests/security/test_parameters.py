"""docs/names.md shows which parameters of a query are known to prove who asks; ``python tests/security/test_parameters.py`` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from forebay_proxy.core.secret_parameters import SECRETS, SIGNATURES, Signature

PAGE = Path(__file__).parents[2] / "docs" / "names.md"
BEGIN = "<!-- made from proxy/forebay_proxy/core/secret_parameters.py: python tests/security/test_parameters.py -->"
END = "<!-- end of what is made -->"


def table() -> str:
    """As Markdown."""
    lines = ["| Signature of | Complete with (*exact*: case counts) |", "|---|---|"]
    lines += [f"| {one.service} | {_needs(one)} |" for one in SIGNATURES]
    return "\n".join([*lines, "", f"Secrets by name, in any case: {_codes(SECRETS)}.", ""])


def _needs(one: Signature) -> str:
    always = frozenset.intersection(*one.needs)
    ways = " or ".join(_codes(need - always) for need in one.needs)
    return f"{_codes(always)}{f', and {ways}' if ways else ''}{'; *exact*' if one.exact else ''}"


def _codes(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


def test_the_page_shows_what_the_code_knows() -> None:
    """Write it with ``python tests/security/test_parameters.py`` when this fails."""
    assert PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}", "utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(SIGNATURES)} signatures, {len(SECRETS)} secrets\n")
