"""Every fuzz target for a second or so: mutations of good input, good input of its own grammar, and noise."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fuzzing import TARGETS
from support.lengths import examples

from forebay_proxy.store.index.row import _FIELDS
from forebay_proxy.wire.tar.end_marker import EndMarker

EXAMPLES = examples(60)  # of each target and each way: they share twenty seconds; benchmarks/fuzz.py goes on for as long as one likes


def quick(count: int = EXAMPLES) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.parametrize("name", TARGETS)
def test_good_input_is_taken(name: str) -> None:
    """The seeds pass their oracles, and there are some."""
    assert TARGETS[name].seeds
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_good_input_and_noise_pass_the_oracle(name: str) -> None:
    """Bytes replaced, cut out, doubled and put in; then anything at all."""
    target = TARGETS[name]

    @quick()
    @given(st.data())
    def run(data: st.DataObject) -> None:
        if data.draw(st.integers(0, 4)) == 0:
            target.run(data.draw(st.binary(max_size=300)))
            return
        sample = bytearray(data.draw(st.sampled_from(target.seeds)))
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(sample)))
            match data.draw(st.integers(0, 3)):
                case 0:
                    del sample[place : place + data.draw(st.integers(1, 9))]
                case 1:
                    sample[place:place] = data.draw(st.binary(min_size=1, max_size=5))
                case 2:
                    sample[place:place] = data.draw(st.sampled_from(SPICE))
                case _:
                    sample[place : place + 1] = bytes([data.draw(st.integers(0, 255))])
        target.run(bytes(sample))

    run()


SPICE = [
    b"..", b"%2e", b"%00", b"%", b"//", b"\\", b"@", b"?", b"#", b"{0..9}", b"{a,b}", b"'", b'"', b" ", b"\t", b"\r\n", b"\0", b"|",
    b"||", b"&&", b";",
    b"$(x)", b"`x`", b"<", b">", b"-", b",", b"=", b"999999999999999999999", b"\xff", b"\xed\xb3\xbf", b"\xef\xbc\x8e", b"[", b"]", b"~",
    b"^", b"!", b"*",
    b"X-Amz-Signature=s", b"endpoint=http://h", b"profile=p",
]  # fmt: skip


@quick(150)
@given(
    st.lists(
        st.sampled_from([*"ab", " ", "  ", "'", '"', "\\", "=", "A=", "x y", "\t", "-", "/", "é", "#", "~", "*", "$", "&", ";"]),
        max_size=14,
    )
)
def test_words_are_those_of_the_shell(parts: list[str]) -> None:
    """Quotes in every combination, against ``shlex``."""
    TARGETS["shell"].run("".join(parts).encode())


@quick(150)
@given(
    st.lists(st.sampled_from(["aws", "s3", "cp", "-", "curl", "-s", "-L", "--profile", "p", "-u", "u:p", "-H", "'X-A: b'", "https://h/a",
    "s3://b/k", "s3://b/a?b",
                              "wget", "-q", "-O", "|| true", "| pv", "2>/dev/null", "--endpoint-url", "http://h:9", "gsutil", "cat",
                              "gs://b/k", "s5cmd", "'s3://b/k'",
                              '"https://h/a?b"', "https://h/{a}", "--url", "-o", "https://h/a%20b", "'s3://b/k", "--no-sign-request",
                              "--request-payer requester", "--region r", "-r 5", "gcloud", "storage", "s3cmd", "get", "/nas/x", "-k",
                              "s3api", "get-object", "--bucket", "--key", "--", "''", "--retry 3"]), max_size=10).map(" ".join)
)  # fmt: skip
def test_commands_keep_to_their_meaning(text: str) -> None:
    """Words of real commands in any order: read, left alone or refused, and rules of GOPEN_REWRITE agree with the code."""
    TARGETS["pipe"].run(text.encode())
    TARGETS["rewrite"].run(f"pipe:{text}".encode())


@quick(150)
@given(
    st.sampled_from(["http", "https", "s3", "gs", "hf", "file", "HTTPS", "S3"]),
    st.text("ab.:@[]%-_?&=/#+~*'\" {}0é\\", max_size=40),
)
def test_urls_are_stable_in_every_spelling(scheme: str, rest: str) -> None:
    """Origin URL and request target of the same text."""
    TARGETS["origin_url"].run(f"{scheme}://h/{rest}".encode())
    TARGETS["origin_url"].run(f"{scheme}://{rest}".encode())
    TARGETS["target"].run(f"/{scheme}/h/{rest}".encode())
    TARGETS["rewrite"].run(f"{scheme}://h/{rest}".encode())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["s3://b/0.tar", "https://h/1.tar"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["shards", "epoch", "set", "indices", "all", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@quick(120)
@given(
    JSON,
    st.sampled_from(["application/json", "application/x-ndjson", "text/plain", ""]),
    st.sampled_from(["", "epoch=3", "set=s3://b/{0..9}", "epoch=x&set="]),
)
def test_any_json_is_a_plan_or_refused(value: object, content_type: str, query: str) -> None:
    """Types in the wrong places, numbers beyond all bounds, patterns that are none."""
    body = json.dumps(value).encode()
    TARGETS["plan"].run(f"{content_type} {query}\n".encode() + body)
    TARGETS["command_body"].run(body)


@quick(120)
@given(st.dictionaries(st.sampled_from(sorted(_FIELDS)), JSON), JSON)
def test_any_json_is_a_row_or_refused(changed: dict[str, object], extra: object) -> None:
    """A good row with fields of other types and values, under the key that follows from it."""
    good = json.loads(TARGETS["row"].seeds[0].partition(b"\n")[2])
    TARGETS["row"].run(b"derive\n" + json.dumps(good | changed).encode())
    TARGETS["row"].run(b"0" * 64 + b"\n" + json.dumps(extra).encode())


@quick(80)
@given(
    st.sampled_from(TARGETS["tar"].seeds),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
)
def test_a_cut_archive_is_judged_as_tarfile_does(archive: bytes, cut: int, changes: list[tuple[int, int]]) -> None:
    """Cut and changed anywhere: never an end where the standard library finds a cut."""
    damaged = bytearray(archive[: cut % (len(archive) + 1)])
    for place, value in changes:
        if damaged:
            damaged[place % len(damaged)] = value
    TARGETS["tar"].run(bytes(damaged))


@pytest.mark.parametrize("number", range(len(TARGETS["tar"].seeds)))
def test_only_a_whole_archive_has_an_end(number: int) -> None:
    """In each format: all of it is whole, and no beginning of it, cut at any byte of its last blocks or at any block, is."""
    archive = TARGETS["tar"].seeds[number]
    cuts = {*range(0, len(archive), 512), *range(len(archive) - 1100, len(archive))}
    assert {cut for cut in cuts if ends(archive[:cut])} == set()
    assert ends(archive)


def ends(data: bytes) -> bool:
    marker = EndMarker()
    marker.feed(data)
    return marker.seen
