"""Requests to servers that stream, hang, refuse and die."""

import threading

import pytest

from omlx.bench.client import Ask, Target, answers, ask, ask_all, body_of
from omlx.bench.failure import BenchError, Fault, RequestError
from omlx.bench.listing import model_names
from tests.fakes.streaming import (
    DONE,
    HEAD,
    KEEP_ALIVE,
    StreamServer,
    Talk,
    answer,
    delta,
    text,
    usage,
)

ASK = Ask("hello", 4, limit_s=20.0, silence_s=20.0)


def _target(server: StreamServer, **fields: object) -> Target:
    return Target(server.url, "m", **fields)  # type: ignore[arg-type]


def _failing(script, request: Ask = ASK) -> RequestError:
    with StreamServer(script) as server, pytest.raises(RequestError) as caught:
        ask(_target(server, name="peer"), request)
    return caught.value


def test_an_answer_with_its_times() -> None:
    asked = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(HEAD, KEEP_ALIVE, text(""))
        asked.wait(0.05)  # a while in which nothing of content comes
        talk.send(text("a"), text("b"), text("", "length"), usage(7, 2, 3), DONE)

    with StreamServer(script) as server:
        found = ask(_target(server, key="secret"), ASK)
        body, head = server.talks[0].body, server.talks[0].head
    assert (found.text, found.finish) == ("ab", "length")
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (7, 3, 2)
    assert found.uncached_tokens == 4
    assert (found.num_keep_alives, found.num_events, len(found.gaps_s)) == (1, 2, 1)
    assert 0 < found.headers_s < found.first_s <= found.last_s <= found.end_s
    assert found.first_s >= 0.05  # neither the keep-alive nor the empty text counted
    assert body == {
        "model": "m", "prompt": "hello", "max_tokens": 4, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert "POST /v1/completions" in head
    assert "Authorization: Bearer secret" in head


def test_messages_go_to_the_chat_and_extra_fields_along() -> None:
    def script(talk: Talk) -> None:
        talk.send(HEAD, delta(role="assistant"), delta(content="x"), delta("stop"), DONE)

    request = Ask([{"role": "user", "content": "hi"}], 4, extra={"seed": 1, "top_k": 2})
    with StreamServer(script) as server:
        found = ask(_target(server, extra={"top_k": 3}), request)
        talk = server.talks[0]
    assert found.text == "x"
    assert "POST /v1/chat/completions" in talk.head
    assert talk.body["messages"] == [{"role": "user", "content": "hi"}]
    assert (talk.body["seed"], talk.body["top_k"]) == (1, 3)
    assert "prompt" not in talk.body
    assert "Authorization" not in talk.head


def test_token_ids_are_a_prompt() -> None:
    body = body_of(Target("http://h", "m"), Ask((1, 2), 3))
    assert body["prompt"] == [1, 2]


def test_a_stream_without_done_is_whole_by_its_finish_reason() -> None:
    with StreamServer(lambda talk: talk.send(HEAD, text("a", "stop"))) as server:
        assert ask(_target(server), ASK).finish == "stop"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_before_or_after_v1(path: str) -> None:
    with StreamServer(lambda talk: talk.send(HEAD, text("a", "stop"), DONE)) as server:
        ask(Target(server.url.removesuffix("/v1") + path, "m"), ASK)
        assert server.talks[0].head.startswith("POST /v1/completions ")


def test_a_server_that_dies_in_the_stream() -> None:
    error = _failing(lambda talk: talk.send(HEAD, text("a"), text("b")))
    assert error.fault is Fault.EARLY
    assert error.message.startswith("peer ended its stream before the answer was whole (after 2 ev")


def test_a_server_that_dies_within_a_chunk() -> None:
    head = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    error = _failing(lambda talk: talk.send(head, b"ff\r\ndata: "))
    assert error.fault is Fault.EARLY
    assert "peer closed the connection before the answer ended" in error.message


def test_a_server_that_closes_without_a_word() -> None:
    error = _failing(lambda talk: None)
    assert error.fault is Fault.EARLY
    assert error.hint == "its log may say why"


@pytest.mark.parametrize(
    ("status", "body", "said", "hint"),
    [
        ("429 Too Many Requests", {"error": {"message": "busy"}}, "429: busy", "fewer requests"),
        ("503 Unavailable", {"detail": "loading"}, "503: loading", "fewer requests"),
        ("401 Unauthorized", {"error": "no key"}, "401: no key", "--key"),
        ("404 Not Found", {"error": {"message": "no m"}}, "404: no m", "--model"),
        ("500 Oops", {}, "500: {}", ""),
    ],
)
def test_an_error_for_an_answer(status: str, body: object, said: str, hint: str) -> None:
    error = _failing(lambda talk: talk.send(answer(status, body)))
    assert error.fault is Fault.STATUS
    assert error.status == int(status[:3])
    assert error.message == f"peer answers with {said}"
    assert hint in error.hint


def test_an_error_in_the_stream_names_the_server() -> None:
    error = _failing(lambda talk: talk.send(HEAD, b'data: {"error": {"message": "died"}}\n\n'))
    assert (error.fault, error.message) == (Fault.EVENT, "peer: the stream brings an error: died")


def test_silence_ends_the_wait() -> None:
    def script(talk: Talk) -> None:
        talk.send(HEAD, text("a"))
        talk.hang()

    error = _failing(script, Ask("x", 4, limit_s=60.0, silence_s=0.1))
    assert error.fault is Fault.SILENCE
    assert "sent nothing for 0.1 s (1 events with content" in error.message


def test_a_server_that_never_answers() -> None:
    error = _failing(lambda talk: talk.hang(), Ask("x", 4, limit_s=60.0, silence_s=0.1))
    assert error.fault is Fault.SILENCE


@pytest.mark.parametrize("part", [KEEP_ALIVE, text("a"), b"x"])
def test_a_stream_that_never_ends_is_too_late(part: bytes) -> None:
    def script(talk: Talk) -> None:
        talk.send(HEAD)
        talk.repeat(part, 0.01)

    error = _failing(script, Ask("x", 4, limit_s=0.2, silence_s=10.0))
    assert error.fault is Fault.LATE
    assert "did not end its answer within" in error.message


def test_an_answer_without_a_token() -> None:
    error = _failing(lambda talk: talk.send(HEAD, text("", "stop"), DONE))
    assert (error.fault, error.message) == (
        Fault.EMPTY,
        "peer answered without a token (finish_reason stop)",
    )


def test_nobody_listens() -> None:
    with StreamServer(lambda talk: None) as server:
        url = server.url
    with pytest.raises(RequestError, match="does not answer: ") as caught:
        ask(Target(url, "m"), ASK)
    assert caught.value.fault is Fault.REFUSED


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://h:x/"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BenchError, match="is not the address of a server") as caught:
        ask(Target(url, "m"), ASK)
    assert caught.value.hint == "as in http://127.0.0.1:8000/v1"


def test_a_prompt_is_needed() -> None:
    with pytest.raises(BenchError, match="needs a prompt"):
        body_of(Target("http://h", "m"), Ask("", 1))


def test_many_at_once_are_connected_before_one_is_sent() -> None:
    together = threading.Barrier(4)

    def script(talk: Talk) -> None:
        together.wait(10)  # breaks unless all four are there at the same time
        talk.send(HEAD, text(talk.body["prompt"], "stop"), DONE)

    with StreamServer(script) as server:
        jobs = [(_target(server), Ask(f"p{idx}", 1)) for idx in range(4)]
        found = answers(ask_all(jobs))
    assert [one.text for one in found] == ["p0", "p1", "p2", "p3"]


def test_one_failure_leaves_the_others() -> None:
    def script(talk: Talk) -> None:
        if talk.body["prompt"] == "bad":
            talk.send(answer("429 Busy", {"error": "full"}))
        else:
            talk.send(HEAD, text("a", "stop"), DONE)

    with StreamServer(script) as server:
        jobs = [(_target(server), Ask(prompt, 1)) for prompt in ("good", "bad", "good")]
        outcomes = ask_all(jobs)
    assert [isinstance(one, RequestError) for one in outcomes] == [False, True, False]
    with pytest.raises(RequestError, match="429: full"):
        answers(outcomes)


def test_one_without_a_connection_does_not_hold_up_the_others() -> None:
    with StreamServer(lambda talk: None) as gone:
        dead = gone.url
    with StreamServer(lambda talk: talk.send(HEAD, text("a", "stop"), DONE)) as server:
        outcomes = ask_all([(_target(server), ASK), (Target(dead, "m"), ASK)])
    assert not isinstance(outcomes[0], RequestError)
    assert isinstance(outcomes[1], RequestError)


def test_nothing_at_once() -> None:
    assert ask_all([]) == []


def test_the_models_of_a_server() -> None:
    body = {"data": [{"id": "a"}, {"id": 3}, 4, {"id": "b"}]}
    with StreamServer(lambda talk: talk.send(answer("200 OK", body))) as server:
        assert model_names(_target(server)) == ["a", "b"]
        assert server.talks[0].head.startswith("GET /v1/models ")


@pytest.mark.parametrize(
    ("sent", "said", "hint"),
    [
        (answer("200 OK", {"data": 4}), "in a way that can't be read", ""),
        (answer("200 OK", [1]), "in a way that can't be read", ""),
        (answer("401 No", {}), "answers with 401", "--key"),
    ],
)
def test_a_server_that_does_not_list_its_models(sent: bytes, said: str, hint: str) -> None:
    with (
        StreamServer(lambda talk: talk.send(sent)) as server,
        pytest.raises(RequestError, match=said) as caught,
    ):
        model_names(_target(server))
    assert hint in caught.value.hint
