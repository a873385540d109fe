"""The protocols beside OpenAI's, in process: each says the same of one answer in its own form.

Not here: the libraries of clients (test_clients.py), types of fields (test_wrong_types.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from serve.support import GREEDY, events, serving

from aggml.models.small import write_small
from aggml.serve.http.kept import ResponseStore
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    import httpx
    from starlette.applications import Starlette

    from aggml.models.tokenizers import Vocabulary

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def ask(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_every_protocol_gives_the_same_answer(file: Path) -> None:
    options = {"temperature": 0, "num_predict": 7}
    async with serving(models=[file]) as (_, client):
        chat = await ask(client, "/v1/chat/completions", messages=MESSAGES, max_tokens=7,
                         temperature=0)  # fmt: skip
        wanted = chat["choices"][0]["message"]["content"]
        anthropic = await ask(client, "/v1/messages", messages=MESSAGES, max_tokens=7,
                              temperature=0)  # fmt: skip
        response = await ask(client, "/v1/responses", input="hello", max_output_tokens=7,
                             temperature=0)  # fmt: skip
        ollama = await ask(client, "/api/chat", messages=MESSAGES, options=options, stream=False)
        prompt = (await ask(client, "/apply-template", messages=MESSAGES))["prompt"]
        llama = await ask(client, "/completion", prompt=prompt, n_predict=7, temperature=0)
    assert [x["text"] for x in anthropic["content"]] == [wanted]
    assert response["output"][0]["content"][0]["text"] == wanted
    assert ollama["message"]["content"] == wanted
    assert llama["content"] == wanted
    tokens = chat["usage"]["prompt_tokens"]
    usage = anthropic["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == tokens
    assert response["usage"]["input_tokens"] == tokens
    assert ollama["prompt_eval_count"] == llama["tokens_evaluated"] == tokens


async def test_every_protocol_streams_what_it_gives_whole(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        given = {"messages": MESSAGES, "max_tokens": 7, "temperature": 0}
        whole = await ask(client, "/v1/messages", **given)
        answer = await client.post("/v1/messages", json=given | {"stream": True})
        told = [json.loads(x[6:]) for x in answer.text.splitlines() if x.startswith("data: ")]
        names = [x[7:] for x in answer.text.splitlines() if x.startswith("event: ")]
        assert names == [x["type"] for x in told]
        assert names[:3] == ["message_start", "ping", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        deltas = [x["delta"]["text"] for x in told if x["type"] == "content_block_delta"]
        assert "".join(deltas) == whole["content"][0]["text"]

        given = {"prompt": "hello", "n_predict": 7, "temperature": 0}
        whole = await ask(client, "/completion", **given, return_tokens=True)
        answer = await client.post("/completion", json=given | {"stream": True})
        pieces = [json.loads(x[6:]) for x in answer.text.splitlines() if x]
        assert "".join(x["content"] for x in pieces) == whole["content"]
        assert [y for x in pieces for y in x["tokens"]] == whole["tokens"]
        assert [x["stop"] for x in pieces] == [False] * (len(pieces) - 1) + [True]
        assert pieces[-1]["stop_type"] == whole["stop_type"] == "limit"

        given = {"messages": MESSAGES, "options": {"temperature": 0, "num_predict": 7}}
        whole = await ask(client, "/api/chat", **given, stream=False)
        answer = await client.post("/api/chat", json=given)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(x) for x in answer.text.splitlines()]
        assert "".join(x["message"]["content"] for x in lines) == whole["message"]["content"]


async def test_errors_have_the_form_of_their_protocol(file: Path) -> None:
    long = [{"role": "user", "content": "a " * 900}]
    async with serving(models=[file]) as (_, client):
        bodies = {"/v1/messages": {"max_tokens": 5}, "/v1/chat/completions": {}, "/api/chat": {}}
        found = {
            path: await client.post(path, json={"messages": long, **more})
            for path, more in bodies.items()
        }
        native = await client.post("/completion", json={"prompt": "a " * 900})
    assert [x.status_code for x in (*found.values(), native)] == [400] * 4
    error = found["/v1/messages"].json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert "prompt is too long: 1819 tokens > 512 maximum" in error["error"]["message"]
    error = found["/v1/chat/completions"].json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "maximum context length is 512 tokens" in found["/api/chat"].json()["error"]
    error = native.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["code"], error["n_ctx"]) == (400, 512)


async def test_prompts_of_llama_server_in_all_their_forms(file: Path) -> None:
    letter = {c: 260 + ord(c) - 33 for c in "abc"}
    async with serving(models=[file]) as (_, client):
        given = {"n_predict": 4, "temperature": 0, "cache_prompt": True, "id_slot": 0}
        text = await ask(client, "/completion", prompt="ab", **given)
        ids = [1, 259, letter["a"], letter["b"]]
        forms = [ids, [1, 259, letter["a"], letter["b"]], {"prompt_string": "ab"}, ["ab"]]
        for prompt in forms:
            assert (await ask(client, "/completion", prompt=prompt, **given))["content"] == (
                text["content"]
            )
        several = await ask(client, "/completion", prompt=["ab", ids, {"prompt_string": "c"}],
                            **given)  # fmt: skip
        assert [x["content"] for x in several[:2]] == [text["content"]] * 2
        assert [x["index"] for x in several] == [0, 1, 2]
        fields = ["content", "generation_settings/n_predict", "nothing"]
        few = await ask(client, "/completion", prompt="ab", **given, response_fields=fields)
        assert few == {
            "content": text["content"], "generation_settings/n_predict": 4,
        }  # fmt: skip
        none = await ask(client, "/completion", prompt="ab", **given | {"n_predict": 0})
        assert (none["content"], none["tokens_predicted"]) == ("", 0)
        q = 260 + ord("q") - 33
        for bias in ([[q, 1e6]], {str(q): 1e6}, [["q", 1e6], [259, False]]):  # a text, by tokens
            biased = await ask(client, "/completion", prompt="ab", **given, logit_bias=bias)
            assert biased["content"] == "qqqq"
        banned = [[x, False] for x in set(text["content"])]
        without = await ask(client, "/completion", prompt="ab", **given, logit_bias=banned)
        assert not set(without["content"]) & set(text["content"])
        told = await ask(client, "/completion", prompt="ab", **given, n_probs=3)
        assert [len(x["top_logprobs"]) for x in told["completion_probabilities"]] == [3] * 4


async def test_tokens_and_their_text(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        tokens = (await ask(client, "/tokenize", content="hello é"))["tokens"]
        assert (await ask(client, "/detokenize", tokens=tokens))["content"] == "hello é"
        begun = (await ask(client, "/tokenize", content="hello", add_special=True))["tokens"]
        assert begun[0] == 1
        pieces = (await ask(client, "/tokenize", content="é", with_pieces=True))["tokens"]
        assert [x["piece"] for x in pieces] == [" ", [195], [169]]
        for parse, count in ((True, 1), (False, 4)):
            found = await ask(client, "/tokenize", content="<s>", parse_special=parse)
            assert len(found["tokens"]) == count
        vllm = await ask(client, "/tokenize", prompt="hello")
        assert vllm["count"] == len(vllm["tokens"]) == len(begun)


@pytest.mark.parametrize("named", [False, True])
async def test_a_gap_is_filled_by_the_tokens_of_the_file(tmp_path: Path, named: bool) -> None:
    names = ("fim_pre", "fim_suf", "fim_mid", "fim_sep") if named else ()
    metadata = {f"tokenizer.ggml.{name}_token_id": 5 + i for i, name in enumerate(names)}
    path = filling_file(tmp_path / "fill.gguf", metadata)
    given = {"input_prefix": "a", "input_suffix": "b", "n_predict": 3, "temperature": 0}
    async with serving(models=[path]) as (app, client):
        answer = await client.post("/infill", json=given)
        other = await client.post(
            "/v1/completions", json={"prompt": "a", "suffix": "b", "max_tokens": 3, **GREEDY}
        )
        if not named:
            assert (answer.status_code, other.status_code) == (501, 400)
            assert other.json()["error"]["param"] == "suffix"
            return
        words = engine_words(app)
        a, b, c = (words.encode(x, special=False, literal=True) for x in "abc")
        assert words.encode_gap("a", "b", begun="c") == [1, 5, *a, 6, *b, 7, *c]
        files = words.encode_gap("a", "b", files=[("f.py", "c")])
        assert files[:2] == [1, 8]
        assert files.count(8) == 2
        prompt = words.encode_gap("a", "b")
        plain = await client.post(
            "/v1/completions", json={"prompt": prompt, "max_tokens": 3, **GREEDY}
        )
        assert other.json()["choices"] == plain.json()["choices"]
        assert answer.json()["content"] == plain.json()["choices"][0]["text"]
        body = {"input_extra": [{"filename": "f", "text": "c"}], "prompt": "x", "n_indent": 0,
                "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "stream": False,
                "samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.9,
                "cache_prompt": True,
                "response_fields": ["content", "timings/predicted_n"]}  # fmt: skip
        vim = await client.post("/infill", json=given | body)
        assert sorted(vim.json()) == ["content", "timings/predicted_n"]
        assert vim.headers["x-aggml-ignored"] == "samplers[infill]"


def engine_words(app: Starlette) -> Vocabulary:
    """The vocabulary of the only model."""
    (model,) = app.state.service.completers.values()
    words: Vocabulary = model.tokenizer
    return words


def filling_file(path: Path, metadata: dict[str, Any]) -> Path:
    """A small model whose file names tokens for filling gaps."""
    return write_small(path, metadata=metadata)


async def test_a_completion_repeats_its_prompt_with_probabilities(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        given = {"prompt": "hello", "max_tokens": 3, "echo": True, "logprobs": 2, **GREEDY}
        whole = (await ask(client, "/v1/completions", **given))["choices"][0]
        none = (await ask(client, "/v1/completions", **given | {"max_tokens": 0}))["choices"][0]
        answer = await client.post("/v1/completions", json=given | {"stream": True})
        streamed = [x["choices"][0] for x in await events(answer)]
    assert whole["text"].startswith("hello")  # without the space that the vocabulary puts before
    assert none["text"] == "hello"
    told = whole["logprobs"]
    assert told["token_logprobs"][0] is None
    assert all(x <= 0 for x in told["token_logprobs"][1:])
    assert "".join(told["tokens"])[-len(whole["text"]) :] == whole["text"]
    assert none["logprobs"]["tokens"] == told["tokens"][: len(none["logprobs"]["tokens"])]
    assert told["text_offset"] == sorted(told["text_offset"])
    ends = [i for i, x in enumerate(told["tokens"]) if x == "o"]
    assert told["text_offset"][ends[0]] == len("hell")
    assert "".join(x["text"] for x in streamed) == whole["text"]
    told_of = zip(
        told["tokens"][1:], told["top_logprobs"][1:], told["token_logprobs"][1:], strict=True
    )
    for token, best, logprob in told_of:
        assert best[token] == logprob
        two = sorted(best.values(), reverse=True)[:2]
        assert len(best) == (2 if logprob in two else 3)  # the best two, and the one that came


async def test_text_models_embed_and_rank_forms_of_other_servers(file: Path, ranker: Path) -> None:
    async with serving(models=[file, ranker]) as (_, client):
        openai = await ask(client, "/v1/embeddings", input=["ab", "c"], model="small")
        wanted = [x["embedding"] for x in openai["data"]]
        llama = await ask(client, "/embedding", content=["ab", "c"], model="small")
        assert [x["embedding"][0] for x in llama] == wanted
        assert await ask(client, "/embed", inputs=["ab", "c"], model="small") == wanted
        ollama = await ask(client, "/api/embed", input=["ab", "c"], model="small:latest")
        assert ollama["embeddings"] == wanted
        raw = (await ask(client, "/embedding", content="ab", model="small", embd_normalize=-1))[0]
        assert sum(x * x for x in raw["embedding"][0]) != pytest.approx(1, abs=1e-3)
        cohere = await ask(client, "/v2/rerank", query="a", documents=["b", "c a"])
        tei = await ask(client, "/rerank", query="a", texts=["b", "c a"], raw_scores=True)
        scores = [(x["index"], x["relevance_score"]) for x in cohere["results"]]
        assert [(x["index"], x["score"]) for x in tei] == scores
        unit = await ask(client, "/rerank", query="a", texts=["b", "c a"])
        assert all(0 < x["score"] < 1 for x in unit)


@pytest.mark.parametrize(
    "path", ["/v1/completions/", "//v1//completions", "/completions", "/v1/v1/completions"]
)
async def test_paths_that_clients_make_are_understood(file: Path, path: str) -> None:
    async with serving(models=[file]) as (_, client):
        answer = await client.post(f"http://here{path}", json={"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200
        assert answer.json()["object"] == "text_completion"


async def test_conversations_of_every_protocol_may_have_calls_and_results(file: Path) -> None:
    """The template of this model shows them or not; nothing is refused."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    chat = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"}]  # fmt: skip
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "2"}],
    }
    blocks = [*MESSAGES, {"role": "assistant", "content": [use]},
              {"role": "user", "content": [result]}]  # fmt: skip
    items = [{"role": "user", "content": "hello"},
             {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
             {"type": "function_call_output", "call_id": "c1", "output": "2"}]  # fmt: skip
    plain = {"function": {"name": "f", "arguments": {"x": 1}}}
    ollama = [*MESSAGES, {"role": "assistant", "tool_calls": [plain]},
              {"role": "tool", "tool_name": "f", "content": "2"}]  # fmt: skip
    async with serving(models=[file]) as (_, client):
        found = [
            (await ask(client, "/v1/chat/completions/input_tokens", messages=chat))["input_tokens"],
            (await ask(client, "/v1/messages/count_tokens", messages=blocks))["input_tokens"],
            (await ask(client, "/v1/responses/input_tokens", input=items))["input_tokens"],
        ]
        answer = await ask(client, "/api/chat", messages=ollama, stream=False,
                           options={"num_predict": 1})  # fmt: skip
    assert len(set(found)) == 1
    assert answer["done"]


async def test_pictures_and_addresses_are_refused_and_never_fetched(file: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    source = {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}
    async with serving(models=[file]) as (_, client):
        for path, content, more in (
            ("/v1/chat/completions", picture, {}),
            ("/v1/messages", source, {"max_tokens": 1}),
        ):
            body = {"messages": [{"role": "user", "content": [content]}], **more}
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert "reads text alone" in answer.text


def test_the_answers_that_are_kept_are_bounded_and_their_owner_s() -> None:
    store = ResponseStore(most=3, size=1000)
    for i in range(5):
        store.add(f"r{i}", "ann", [{"n": i}], {"id": i})
    assert len(store) == 3
    assert store.find("r4", "ann").answer == {"id": 4}
    for name, owner in (("r0", "ann"), ("r4", "bob"), ("r4", None)):
        with pytest.raises(RequestError):
            store.find(name, owner)
    store.add("large", "ann", [{"x": "y" * 2000}], {})
    assert len(store) == 3  # too large to be kept at all
    store.add("big", "ann", [{"x": "y" * 985}], {})
    assert len(store) == 1  # the older ones made room
    store.delete("big", "ann")
    assert len(store) == 0


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ([12, 34, "a", 56], None),
        (["a", 12], None),
        ({"prompt_string": "a b"}, "a b"),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, "a b"),
    ],
)
async def test_inputs_of_embeddings_in_all_forms_of_llama_server(
    file: Path, given: Any, same: str | None
) -> None:
    async with serving(models=[file]) as (_, client):
        one = await ask(client, "/v1/embeddings", input=given)
        many = await ask(client, "/v1/embeddings", input=["x", given])
        assert len(one["data"]) == 1
        assert len(many["data"]) == 2
        if same is not None:
            text = await ask(client, "/v1/embeddings", input=same)
            assert one["data"] == text["data"]


@pytest.mark.parametrize(
    "given",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
        {"content": "a"},
        [12, "a", 10**9],
        [12, 1.5],
        [[12, None]],
        {},
    ],
)
async def test_inputs_of_embeddings_that_are_no_text_are_refused(file: Path, given: Any) -> None:
    async with serving(models=[file]) as (_, client):
        answer = await client.post("/v1/embeddings", json={"input": given})
        assert answer.status_code == 400, answer.text
