"""Every pitfall we know of, what is done about it, and the tests that hold it. README.md here shows this table.

``python tests/security/test_table.py`` writes it there.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md")
BEGIN = "<!-- made from tests/security/test_table.py: python tests/security/test_table.py -->"
ORIGINS = "tests/proxy/origins"
HERE = "tests/security"


@dataclass(frozen=True)
class Row:
    """``tests``: file, or file::test, from the root of the repository."""

    pitfall: str
    answer: str
    tests: tuple[str, ...]


TABLE = (
    Row(
        "Open proxy, SSRF by URL",
        "scheme, name and address are checked; loopback needs --allow-origin",
        (f"{ORIGINS}/net/test_guard.py", f"{ORIGINS}/net/test_allow_list.py",
        f"{ORIGINS}/test_http.py::test_refusals_are_403_and_open_nothing"),
    ),
    Row(
        "Cloud metadata, link-local addresses",
        "refused in every spelling, in IPv6 and by name",
        (
            f"{ORIGINS}/net/test_address_class.py", f"{ORIGINS}/net/test_guard.py::test_some_places_are_never_allowed",
            f"{ORIGINS}/net/test_guard.py::test_metadata_names_are_refused_before_any_look_up",
        ),
    ),
    Row(
        "DNS rebinding",
        "only the checked address is connected to",
        (f"{ORIGINS}/net/test_dial.py",),
    ),
    Row(
        "Redirect to an inner host, or with a credential",
        "each hop is checked; https stays https; credentials stay with the first host",
        (
            f"{ORIGINS}/test_http.py::test_a_redirect_is_judged_like_any_request",
            f"{ORIGINS}/test_request.py::test_https_never_becomes_http",
            f"{ORIGINS}/test_request.py::test_credentials_and_trust_stay_with_the_first_host",
            f"{ORIGINS}/net/test_guard.py::test_a_public_host_never_redirects_inward",
            f"{HERE}/test_credentials.py::test_a_credential_goes_to_the_host_it_named_and_no_further",
        ),
    ),
    Row(
        "Request smuggling, parser exhaustion",
        "repeated headers, bodies on GET, odd framing and targets end the connection",
        (f"{HERE}/test_smuggling.py",),
    ),
    Row("Response splitting, header injection", "only six headers of an origin reach the client",
    (f"{HERE}/test_answers.py",)),
    Row(
        "A credential's bytes read with another",
        "a ranged GET under If-Match must succeed; only its HMAC is kept",
        (f"{HERE}/test_credentials.py",),
    ),
    Row(
        "One URL, several contents (`Vary`, tokens that choose)",
        "the origin is asked about each; headers in Vary are part of the key",
        (f"{HERE}/test_variants.py", "tests/proxy/cache/resident/test_entry.py"),
    ),
    Row(
        "Secrets in query parameters",
        "not part of a shard's name; deleted from the disk once known",
        (
            "tests/proxy/core/test_secret_parameters.py", f"{HERE}/test_parameters.py",
            f"{HERE}/test_secrets.py::test_what_is_known_as_a_secret_only_now_leaves_the_disk",
        ),
    ),
    Row(
        "Cache poisoning",
        "clients cannot write; links are not followed; rows are checked field by field",
        (f"{HERE}/test_files.py", f"{HERE}/test_poisoned_index.py", "tests/proxy/store/index/test_row.py",
        "tests/proxy/store/index/test_database.py", "tests/proxy/node/test_cache_location.py"),
    ),
    Row(
        "200 for a 206, short body, wrong range",
        "status, range, length and version are checked",
        (
            f"{ORIGINS}/test_http.py::test_a_body_that_breaks_off_is_an_error",
            f"{ORIGINS}/test_response.py", "tests/faults/test_fault_reads.py",
        ),
    ),
    Row(
        "Path traversal",
        "files are named by digests; each path has one spelling",
        (f"{HERE}/test_traversal.py", f"{ORIGINS}/test_file.py"),
    ),
    Row(
        "Pickle, shells, code from data",
        "neither imported nor called",
        (
            "tests/test_project.py::test_nothing_unpickles", "tests/test_project.py::test_no_shell_argument",
            f"{HERE}/test_runtime.py::test_a_sidecar_starts_no_process_and_unpickles_nothing",
            f"{HERE}/test_poisoned_index.py::test_a_poisoned_row_is_refused",
        ),
    ),
    Row(
        "Secrets in logs, metrics, errors, files",
        "planted secrets are searched in all output",
        (
            f"{HERE}/test_secrets.py", f"{HERE}/test_logs.py", f"{ORIGINS}/test_http.py::test_errors_hold_no_secret",
            f"{ORIGINS}/net/test_proxies.py::test_a_password_becomes_a_header_and_is_never_shown",
        ),
    ),
    Row(
        "Resource exhaustion",
        "connections, headers, bodies, plans and names are bounded; stuck readers lose their leases",
        (f"{HERE}/test_exhaustion.py", "tests/proxy/server/net/test_access.py"),
    ),
    Row(
        "Browsers, rebinding of our own name",
        "Host, Origin, Sec-Fetch-Site and Referer are checked; a browser gives no commands",
        (f"{HERE}/test_browsers.py", "tests/proxy/server/net/test_access.py"),
    ),
    Row(
        "Another user, another machine",
        "the kernel names local users; others need the token",
        (f"{HERE}/test_other_users.py", "tests/proxy/server/net/test_peers.py"),
    ),
    Row(
        "Decompression bombs, TLS off",
        "bodies stay encoded; verification cannot be turned off",
        (f"{HERE}/test_runtime.py", f"{ORIGINS}/net/test_trust.py",
        f"{ORIGINS}/test_http.py::test_an_untrusted_certificate_is_not_retried"),
    ),
    Row(
        "A foreign settings file",
        "read only if nobody else can write it",
        ("tests/proxy/config/test_settings_file.py", f"{HERE}/test_settings_file.py"),
    ),
    Row(
        "Run file and sockets in a shared directory",
        "refused unless the user's alone; sockets are 0600 from the start",
        (f"{HERE}/test_files.py", "tests/proxy/node/test_runfile.py", "tests/proxy/server/net/test_listen.py"),
    ),
    Row(
        "Anything that reads foreign input",
        "fuzzed, longer by benchmarks/fuzz.py",
        ("tests/property/test_fuzz_targets.py", "tests/property/test_fuzz_curl.py"),
    ),
)  # fmt: skip


def table() -> str:
    """As Markdown."""
    lines = ["| Pitfall | What is done | Held by |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.pitfall} | {row.answer} | {_redirects(row)} |" for row in TABLE)]) + "\n"


def _redirects(row: Row) -> str:
    files = dict.fromkeys(test.partition("::")[0] for test in row.tests)
    return ", ".join(f"[{Path(file).stem}](../../{file})" for file in files)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.pitfall)
def test_each_row_has_its_tests(row: Row) -> None:
    """Files with tests in them, and tests of that name."""
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        found = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        }
        assert found
        assert not name or name in found, test


def test_each_file_here_belongs_to_a_row() -> None:
    """No test of this directory is about nothing in the table."""
    named = {test.partition("::")[0] for row in TABLE for test in row.tests} | {f"{HERE}/test_table.py", f"{HERE}/test_docs.py"}
    files = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")}
    assert files - named == set()


def test_the_page_shows_this_table() -> None:
    """Write it with ``python tests/security/test_table.py`` when this fails."""
    assert PAGE.read_text("utf-8").partition(BEGIN)[2].strip() == table().strip()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8").partition(BEGIN)[0]
    PAGE.write_text(f"{text}{BEGIN}\n\n{table()}", "utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(TABLE)} rows\n")
