"""How many requests in the air a line is worth, by what it brought."""

from __future__ import annotations

from forebay_proxy.pipe import FEWEST, UNKNOWN, Pipe

MIB = 2**20
LATENCY_S = 0.065


def flown(pipe: Pipe, *, together: float, connection: float, seconds: float, start: float = 0.0, most: int = 64) -> float:
    """Keep ``pipe.requests`` bodies of 8 MiB in the air on such a line, in steps of 5 ms; the moment at the end."""
    now, step = start, 0.005
    bodies: list[list[float]] = []
    while now < start + seconds:
        while len(bodies) < min(most, pipe.requests):
            pipe.asked(now)
            bodies.append([now + LATENCY_S, 8.0 * MIB])
        coming = [body for body in bodies if body[0] <= now]
        for body in coming:
            size = min(body[1], step * min(connection, together / len(coming)))
            body[1] -= size
            pipe.came(int(size), now)
        now += step
        for body in [body for body in bodies if body[1] <= 0]:
            bodies.remove(body)
            pipe.ended(now)
    for _ in bodies:
        pipe.ended(now)
    return now


def test_nothing_is_known_before_anything_came() -> None:
    """Requests alone say nothing."""
    pipe = Pipe()
    pipe.asked(0.0)
    pipe.asked(9.0)
    assert pipe.requests == UNKNOWN


def test_a_line_that_is_full_is_not_divided_further() -> None:
    """88 MB/s that two connections can fill: not twelve."""
    pipe = Pipe()
    flown(pipe, together=88e6, connection=50e6, seconds=5.0)
    assert FEWEST <= pipe.requests <= 8


def test_fewer_are_tried_where_many_were_asked_for_at_once() -> None:
    """Readers that all wait do not make the line wider."""
    pipe = Pipe()
    pipe.requests = 16
    flown(pipe, together=88e6, connection=50e6, seconds=8.0)
    assert FEWEST <= pipe.requests <= 8


def test_a_line_that_each_request_adds_to_is_given_more() -> None:
    """50 MB/s a connection, and no end of it."""
    pipe = Pipe()
    flown(pipe, together=1e12, connection=50e6, seconds=5.0, most=32)
    assert pipe.requests >= 32


def test_a_line_that_became_narrow_is_noticed() -> None:
    """What it carried before is forgotten."""
    pipe = Pipe()
    now = flown(pipe, together=1e12, connection=50e6, seconds=5.0, most=32)
    flown(pipe, together=40e6, connection=50e6, seconds=60.0, start=now)  # the first of them take 13 s each
    assert pipe.requests <= 8


def test_a_line_that_became_wide_is_noticed() -> None:
    """The limit is no trap."""
    pipe = Pipe()
    now = flown(pipe, together=40e6, connection=50e6, seconds=5.0)
    flown(pipe, together=1e12, connection=50e6, seconds=30.0, start=now, most=32)
    assert pipe.requests >= 16
