"""Every name has one number, whatever way it came, and none when nobody mentions it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import shard_of

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.shard_ids import NameTable, ShardIds
from forebay_proxy.server.http.plan_route import shards_of
from forebay_proxy.wire.urls.patterns import expand
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_origin_url

TEXTS = ["s3://b/{a,b}/part-{0..2}/{000..009}.tar", "s3://b/a/part-1/{000..019}.tar", "https://H.example:443/x/{7..12}.tar?sig=s"]
HEADERS = (("Authorization", "Bearer t"),)


def named(text: str) -> list[str]:
    return [Shard.of(parse_origin_url(url)).name for url in expand(text)]


_taking = st.tuples(st.sampled_from(["list", "template"]), st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=6))


@settings(deadline=None)
@given(st.lists(st.one_of(_taking, st.integers(0, 8)), max_size=25))
def test_each_name_has_one_number_and_all_are_forgotten_in_the_end(script: list[tuple[str, int, list[int]] | int]) -> None:
    """Against a count of mentions by name; a number in the script gives back what was taken then."""
    shard_ids, taken, names = ShardIds(), list[tuple[list[int], list[str]]](), list(map(named, TEXTS))
    for step in script:
        if isinstance(step, int):
            if step < len(taken):
                shard_ids.release(taken.pop(step)[0])
        else:
            how, which, indices = step
            urls = list(expand(TEXTS[which]))
            shards = [Shard.of(parse_origin_url(urls[index])) for index in indices]
            numbers = shard_ids.ids(shards if how == "list" else shard_ids.template(TEXTS[which]).picked(indices))
            taken.append((list(numbers), [names[which][index] for index in indices]))
        held = {name: number for numbers, whose in taken for number, name in zip(numbers, whose, strict=True)}
        assert len(shard_ids) == len(held) == len(set(held.values()))
        for number, name in ((number, name) for numbers, whose in taken for number, name in zip(numbers, whose, strict=True)):
            assert (shard_ids.number(name), shard_ids.name(number), shard_ids.shard(number).name) == (number, name, name)
    for numbers, _ in taken:
        shard_ids.release(numbers)
    assert (len(shard_ids), shard_ids.held_bytes, shard_ids.number(names[0][0])) == (0, 0, None)


@pytest.mark.parametrize("text", [
    *TEXTS, "s3://b/{0..3}{0..3}/x.tar", "s3://b/{1..12}{01..02}.tar", "https://o/a%20{0..3}.tar", "s3://b/{0..2}/",
    r"s3://b/\{{0..2}.tar", "https://{a,b}.example/{0..2}.tar", "https://o/{0..2}?versionId={0..1}", "s3://b/.{0..2}", "s3://b{0..2}/k",
])  # fmt: skip
def test_the_names_of_a_template_are_the_parsers(text: str) -> None:
    """The quick way to a name changes nothing, in whatever order names are asked for."""
    template = ShardIds().template(text)
    names = named(text)
    assert [template.name(index) for index in reversed(range(len(template)))] == names[::-1]
    assert [template.shard(index).name for index in range(len(template))] == names


def test_headers_of_a_template_stay_with_its_first_host() -> None:
    """The first of the plan, not of the pattern; the other host is asked without them."""
    shard_ids, text = ShardIds(), "https://{one,two}.example/{0..1}.tar"
    template = shard_ids.template(text, HEADERS, first=2)
    assert [template.shard(index).credential.headers for index in range(4)] == [(), (), HEADERS, HEADERS]
    assert shard_ids.template(text).block is template.block


def test_a_text_that_is_no_url_is_named_and_nothing_is_held() -> None:
    """The entry's place in the plan; those before it are given back."""
    shard_ids = ShardIds()
    picked = shard_ids.template("{s3,ftp}://b/{0..9}.tar").picked([3, 4, 15])
    with pytest.raises(InvalidShardUrl, match="entry 2: unknown scheme"):
        shard_ids.ids(picked)
    assert (len(shard_ids), shard_ids.held_bytes) == (0, 0)


def test_a_template_costs_arrays_only() -> None:
    """No shard, no name: what is written down of ten thousand is as much as of ten."""
    shard_ids = ShardIds()
    numbers = shard_ids.ids(shard_ids.template("s3://b/{0000..9999}.tar").picked())
    assert (len(shard_ids), len(shard_ids._shards), shard_ids.held_bytes) == (10_000, 0, 64 * len("s3://b/{0000..9999}.tar"))
    shard_ids.release(numbers[1:])
    assert shard_ids.name(numbers[0]) == "s3://b/0000.tar"


def test_a_list_brings_its_shards() -> None:
    """As they are, credential included; the second one of a name is told apart."""
    shard_ids = ShardIds()
    first, second = shard_of("https://o/k.tar", credential="a"), shard_of("https://o/k.tar", credential="b")
    numbers = shard_ids.ids([first, second, first])
    assert shard_ids.shard(numbers[0]) is first
    assert shard_ids.strangers(numbers, [first, second, first], 0) == {numbers[0]: second}


@pytest.mark.parametrize("texts", [["https://h/a?x=/b", "https://h/a?x=/c"], ["s3://b/a.tar?endpoint=https://minio"] * 2])
def test_a_slash_in_a_query_is_no_folder(texts: list[str]) -> None:
    """What was put together from a sibling had lost its query, and was another shard."""
    assert [shard.name for shard in shards_of(texts)] == [Shard.of(parse_origin_url(text)).name for text in texts]


# Hashes and their numbers


@given(st.lists(st.tuples(st.booleans(), st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1)))))
def test_a_table_is_a_dict(script: list[tuple[bool, int]]) -> None:
    """Whatever comes and goes, hashes that collide in their low bits too; numbers are dense and used again."""
    table, model = NameTable(), dict[int, int]()
    most = 0
    for comes, hashed in [*script, *((True, number << 40) for number in range(40))]:
        if comes and hashed not in model:
            model[hashed] = table.add(hashed)
            most = max(most, len(model))
        elif not comes and hashed in model:
            table.remove(model.pop(hashed))
        assert (table.find(hashed), len(table)) == (model.get(hashed, 0), len(model))
    assert {table.find(hashed): hashed for hashed in model} == {number: hashed for hashed, number in model.items()}
    assert max(model.values()) <= most


def test_an_empty_table_keeps_nothing() -> None:
    """The arrays of half a million names go with the last of them."""
    table = NameTable()
    numbers = [table.add(hashed) for hashed in range(10_000)]
    assert len(table._heads) > 9_000
    for number in numbers:
        table.remove(number)
    assert (len(table._hashes), len(table._heads), table.add(5)) == (1, 8, 1)
