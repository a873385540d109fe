"""Which replica gets a request: the table of the prompts that each was given, and the rule.

Not here: Ray (test_prefixes.py).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing

from aggml.ray.routing import ReplicaPrefixes, pieces_of, rank_replicas


def body(**given: Any) -> bytes:
    return json.dumps(given).encode()


def test_pieces_name_a_beginning() -> None:
    one = pieces_of(body(prompt="a" * 600))
    assert len(one) == 2
    assert len(set(one)) == 2  # they differ, although the text of both pieces is the same
    assert pieces_of(body(prompt="a" * 512 + "b" * 400))[:2] == one
    assert pieces_of(body(prompt="b" + "a" * 511))[1:] != one[1:]
    assert pieces_of(body(prompt=["a" * 600, "c"])) == one
    assert pieces_of(body(prompt="a" * 600, model="other"))[0] != one[0]
    assert pieces_of(body(prompt="a" * 600, max_tokens=9, stream=True)) == one


def test_tokens_and_messages_have_pieces_too() -> None:
    ids = list(range(200))
    assert len(pieces_of(body(prompt=ids))) == 3
    assert pieces_of(body(prompt=[ids])) == pieces_of(body(prompt=ids))
    begin = {"role": "system", "content": "x" * 700}
    one = pieces_of(body(messages=[begin, {"role": "user", "content": "hello"}]))
    two = pieces_of(body(messages=[begin, {"role": "user", "content": "good evening" * 30}]))
    assert len(one) == 2
    assert two[:2] == one


@pytest.mark.parametrize(
    "given",
    [b"", b"{", b"[]", b"\xff", body(input="x" * 900), body(prompt="short"), body(prompt=7),
     body(prompt=[2**70] * 200), body(prompt=[1, "a"] * 200), body(messages="x" * 900)],
)  # fmt: skip
def test_what_has_no_beginning_has_no_pieces(given: bytes) -> None:
    assert pieces_of(given) == []


def test_a_table_forgets_what_was_used_least_recently() -> None:
    table = ReplicaPrefixes(most=4)
    one, two = pieces_of(body(prompt="a" * 600)), pieces_of(body(prompt="b" * 600))
    table.note("x", one)
    table.note("x", two)
    table.note("x", one)
    table.note("x", pieces_of(body(prompt="c" * 300)))
    # the table forgets the end of a prompt before its beginning
    assert (table.match("x", one), table.match("x", two)) == (2, 1)
    assert (table.size("x"), table.match("y", one)) == (4, 0)
    table.keep(["y"])
    assert table.match("x", one) == 0


def test_the_longest_beginning_wins_unless_its_replica_is_busy() -> None:
    table = ReplicaPrefixes(100)
    long = pieces_of(body(prompt="a" * 900))
    table.note("x", long)
    table.note("y", long[:1])
    assert rank_replicas(long, {"x": 0, "y": 0, "z": 0}, table, 4) == ["x", "y", "z"]
    assert rank_replicas(long, {"x": 3, "y": 0, "z": 0}, table, 4)[0] == "x"
    assert rank_replicas(long, {"x": 4, "y": 0, "z": 0}, table, 4)[0] == "y"
    assert rank_replicas(long, {"x": 4, "y": 4, "z": 0}, table, 4) == ["z", "y", "x"]
    # the replica with the fewest remembered pieces comes first
    assert rank_replicas([], {"x": 0, "y": 0, "z": 0}, table, 4) == ["z", "y", "x"]
    assert rank_replicas([], {}, table, 4) == []


def test_no_replica_gets_further_ahead_than_it_may() -> None:
    table, loads = ReplicaPrefixes(100), dict.fromkeys("wxyz", 0)
    pieces = pieces_of(body(prompt="a" * 900))
    for _ in range(100):
        first = rank_replicas(pieces, loads, table, 5)[0]
        loads[first] += 1
        table.note(first, pieces)
        assert max(loads.values()) - min(loads.values()) <= 5


def test_beginnings_spread_and_stay() -> None:
    table = ReplicaPrefixes(100)
    begins = [pieces_of(body(prompt=f"{i:03}" * 300)) for i in range(9)]
    idle = dict.fromkeys("xyz", 0)
    first = []
    for pieces in begins:
        first.append(rank_replicas(pieces, idle, table, 2)[0])
        table.note(first[-1], pieces)
    assert set(Counter(first).values()) == {3}
    assert [rank_replicas(pieces, idle, table, 2)[0] for pieces in begins] == first
