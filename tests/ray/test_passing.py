"""The client's view while replicas are lost: answers that go on, failures that are reported.

Here: the part of the deployment in front, with events as replicas send them. Not here: replicas
(test_continued.py).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing
from ray.exceptions import ActorDiedError

from aggml.ray.passing import REPLICA, Begin, BodyPart, Passing
from aggml.serve.http.resuming import Note

EVENTS = Begin(200, [(b"content-type", b"text/event-stream; charset=utf-8"), (REPLICA, b"one")])
OTHER = Begin(200, [*EVENTS.headers[:1], (REPLICA, b"two")])
JSON = Begin(200, [(b"content-type", b"application/json")])
BUSY = Begin(503, [(b"content-type", b"application/json")])


class Client:
    """Keeps all that is sent to the client."""

    def __init__(self) -> None:
        self.starts: list[Any] = []
        self.body = b""
        self.ended = False

    async def send(self, message: Any) -> None:
        assert not self.ended
        if message["type"] == "http.response.start":
            self.starts.append(message)
        else:
            self.body += message["body"]
            self.ended = not message["more_body"]


def event(*tokens: int, characters: int = 0) -> BodyPart:
    return BodyPart(b"data: %d\n\n" % len(tokens), [Note(0, tokens, characters)])


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def passing(client: Client) -> Passing:
    return Passing(client.send)


async def test_a_stream_goes_on_with_what_was_sent(client: Client, passing: Passing) -> None:
    before = passing.so_far_now()
    for part in (EVENTS, event(5, 6, characters=2), event(7, characters=3)):
        await passing.take(part)
    assert passing.can_go_on()
    told = passing.so_far_now()
    assert (told.name, told.seed) == (before.name, before.seed)
    assert told.choices[0].tokens == [5, 6, 7]
    assert told.choices[0].characters == 3
    for part in (OTHER, event(8), BodyPart(b"data: [DONE]\n\n", [Note(ended=True)])):
        await passing.take(part)
    await passing.end()
    (start,) = client.starts
    assert dict(start["headers"])[REPLICA] == b"one"
    assert client.body == (
        b"data: 2\n\ndata: 1\n\n: continued on two\n\ndata: 1\n\ndata: [DONE]\n\n"
    )
    assert client.ended


async def test_an_answer_that_is_no_stream_begins_anew(client: Client, passing: Passing) -> None:
    await passing.take(JSON)
    await passing.take(BodyPart(b'{"half', []))
    assert passing.can_go_on()
    assert not client.starts
    await passing.take(JSON)
    await passing.take(BodyPart(b'{"whole":1}', []))
    await passing.end()
    assert client.body == b'{"whole":1}'
    assert client.ended


async def test_replicas_that_are_lost_without_an_event_are_counted(
    client: Client, passing: Passing
) -> None:
    await passing.take(EVENTS)
    for _ in range(4):  # with an event in between any number of replicas may be lost
        assert passing.can_go_on()
        await passing.take(OTHER)
        await passing.take(event(1))
    assert passing.can_go_on()
    assert passing.can_go_on()
    assert not passing.can_go_on()
    await passing.fail(ActorDiedError())
    await passing.end()
    told = json.loads(client.body.decode().split("data: ")[-1])
    assert told["error"]["type"] == "server_error"
    assert "was lost: ActorDiedError" in told["error"]["message"]
    assert client.ended


async def test_before_anything_was_sent_a_failure_is_the_answer(
    client: Client, passing: Passing
) -> None:
    assert [passing.can_go_on() for _ in range(3)] == [True, True, False]
    await passing.fail(ActorDiedError())
    await passing.end()
    assert client.starts[0]["status"] == 500
    assert json.loads(client.body)["error"]["type"] == "server_error"


async def test_events_without_notes_cannot_go_on(client: Client, passing: Passing) -> None:
    """The events of transcriptions have no notes."""
    await passing.take(EVENTS)
    assert passing.can_go_on()  # nothing was sent yet
    await passing.take(OTHER)
    await passing.take(BodyPart(b"data: a segment\n\n", []))
    assert not passing.can_go_on()
    await passing.fail(ActorDiedError())
    await passing.end()
    assert b"server_error" in client.body
    assert client.ended


async def test_a_replica_that_refuses_to_go_on_says_why(client: Client, passing: Passing) -> None:
    await passing.take(EVENTS)
    await passing.take(event(1))
    assert passing.can_go_on()
    await passing.take(BUSY)
    await passing.take(BodyPart(b'{"error":{"type":"overloaded_error"}}', []))
    await passing.end()
    assert client.body.endswith(b'data: {"error":{"type":"overloaded_error"}}\n\n')
    assert len(client.starts) == 1
    assert client.ended


async def test_after_the_last_event_nothing_is_lost(client: Client, passing: Passing) -> None:
    await passing.take(EVENTS)
    await passing.take(BodyPart(b"data: [DONE]\n\n", [Note(ended=True)]))
    assert not passing.can_go_on()
    await passing.fail(ActorDiedError())
    await passing.end()
    assert client.body == b"data: [DONE]\n\n"
    assert client.ended
