"""Label values are bounded in number, and a slot goes to a newcomer only after long silence."""

from __future__ import annotations

import pytest

from forebay_proxy.telemetry.prometheus.metric_labels import LabelSlots, code_label, job_label, origin_label


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _World:
    def __init__(self, most: int = 2) -> None:
        self.clock, self.born, self.gone = _Clock(), list[str](), list[str]()
        self.slots = LabelSlots(most, job_label, born=self.born.append, gone=self.gone.append, quiet_s=60, clock=self.clock)


def test_a_value_is_born_once() -> None:
    """Hearing the same name again changes nothing."""
    world = _World()
    assert [world.slots.of("a"), world.slots.of("a")] == ["a", "a"]
    assert world.born == ["a"]


def test_a_newcomer_to_full_slots_is_other() -> None:
    """The first ones keep their labels while they are heard."""
    world = _World()
    assert [world.slots.of(name) for name in "abc"] == ["a", "b", "other"]
    assert (world.born, world.gone) == (["a", "b"], [])


def test_silence_frees_a_slot() -> None:
    """The value unheard for longest goes when somebody needs its slot, not before."""
    world = _World()
    world.slots.of("a")
    world.slots.of("b")
    world.clock.now = 50
    world.slots.of("a")
    world.clock.now = 61
    assert [world.slots.of("c"), world.slots.of("d")] == ["c", "other"]
    assert (world.born, world.gone) == (["a", "b", "c"], ["b"])
    assert world.slots.held() == ("a", "c")


def test_other_never_takes_a_slot() -> None:
    """Unreadable names count together however many they are."""
    world = _World()
    assert {world.slots.of(f"not a name {number}") for number in range(9)} == {"other"}
    assert world.slots.held() == ()


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("https://Data.Example.org", "https://data.example.org"), ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/x", "http://[::1]:8080"), ("s3://my-bucket/a/b?endpoint=x", "s3://my-bucket"), ("file://", "file://"),
        ("file:///secret/path", "file://"), ("https://u:p@h.example/x?sig=1", "https://h.example"), ("ftp://h", "other"),
        ("h.example", "other"), ("", "other"), ("https://h ost", "other"), ("https://" + "a" * 300, "other"),
    ],
)  # fmt: skip
def test_an_origin_is_scheme_and_host(text: str, label: str) -> None:
    """No userinfo, path, query or fragment survives."""
    assert origin_label(text) == label


@pytest.mark.parametrize(("text", "label"), [("train-7.0", "train-7.0"), ("", "anonymous"), ("a b", "other"), ("x" * 65, "other")])
def test_a_job_is_a_plain_word(text: str, label: str) -> None:
    """What is not one is not shown at all."""
    assert job_label(text) == label


@pytest.mark.parametrize(("code", "label"), [(0, "0"), (206, "206"), (599, "599"), (-1, "other"), (9999, "other")])
def test_a_code_is_a_status(code: int, label: str) -> None:
    """0 says that no answer came; nonsense is other."""
    assert code_label(code) == label
