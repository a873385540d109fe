"""The program `aggml`: help, one-line errors, exit statuses, generate, embed, chat and gguf.

Not here: `aggml devices` (tests/registry/test_command.py), bench, trace and ops (test_looking.py),
events (test_events.py), help and completion (test_help.py), the server (tests/serve).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

import numpy as np
import pytest
from cli.program import PROGRAM, run, told

import aggml
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = ["--temperature", "0", "-n", "6", "--ctx", "256"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["generate"], "aggml generate: Missing argument 'MODEL'"),
        (["generate", "x.gguf", "--nonsense"], "aggml generate: "),
        (["nonsense"], "aggml: No such command 'nonsense'"),
        (["gguf", "quantize", "a", "b", "--type", "q9_9"], "aggml gguf quantize: Invalid value"),
    ],
)
def test_wrong_arguments_are_one_line(given: list[str], names: str) -> None:
    text, errors = run(*given, status=2)
    assert text == ""
    assert names in errors
    assert errors.count("\n") == 1
    assert "--help" in errors


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_generate_prints_what_the_model_gives(path: Path, loop: str) -> None:
    found = told("generate", path, "-p", "hello world", "--loop", loop, *GREEDY)
    assert found["architecture"] == "llama"
    assert len(found["ids"]) == 6
    text, errors = run("generate", path, "-p", "hello world", "--loop", loop, *GREEDY)
    assert (text, errors) == (found["text"] + "\n", "")
    assert told("generate", path, "-p", "hello world", *GREEDY)["ids"] == found["ids"]


def test_drafts_do_not_change_what_generate_prints(path: Path) -> None:
    wanted = told("generate", path, "-p", "hello hello hello", *GREEDY)["ids"]
    for draft in ("lookup", path):
        found = told("generate", path, "-p", "hello hello hello", "--draft", draft, *GREEDY)
        assert found["ids"] == wanted


def test_a_prompt_comes_from_standard_input(path: Path) -> None:
    wanted, _ = run("generate", path, "-p", "hello", *GREEDY)
    assert run("generate", path, *GREEDY, given="hello")[0] == wanted


def test_embed_prints_a_vector_for_each_text(path: Path) -> None:
    vectors = np.array(told("embed", path, "hello", "world", "--ctx", "256"))
    assert vectors.shape == (2, llama_files.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    lines = run("embed", path, "--ctx", "256", given="\ufeffhello\nworld\n")[0].splitlines()
    np.testing.assert_allclose([[*map(float, x.split())] for x in lines], vectors, rtol=1e-4)


@pytest.mark.long
def test_chat_answers_each_line_and_forgets_when_told(path: Path) -> None:
    given = "hello\nworld\n/clear\nhello\n/quit\n"
    text, errors = run("chat", path, *GREEDY, given=given)
    first, second, cleared, again, _ = text.split("> ")[1:] + [""] * (6 - len(text.split("> ")))
    greeting, *cuts = errors.splitlines()
    assert greeting == (
        "llama, 256 positions. /clear forgets what was said, /help explains, /quit leaves"
    )
    assert cuts == ["(cut off after 6 tokens, by --max-tokens or a full context)"] * 3
    assert (first, cleared) == (again, "")
    assert second != first


@pytest.mark.long
def test_ctrl_c_ends_an_answer_and_not_the_conversation(path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "chat", str(path), "--temperature", "0", "-n", "100000", "--ctx", "60000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as chat:  # fmt: skip
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"hello\n")
        chat.stdin.flush()
        assert len(chat.stdout.read(8)) == 8  # the answer has begun
        chat.send_signal(signal.SIGINT)
        chat.stdin.write(b"/quit\n")
        chat.stdin.flush()
        rest = chat.stdout.read()
        assert chat.wait(30) == 0
        assert rest.endswith(b"\n> ")


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_ctrl_c_just_after_an_answer_does_not_leave(path: Path, loop: str) -> None:
    with subprocess.Popen(
        [*PROGRAM, "chat", str(path), "--loop", loop, *GREEDY],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"}, bufsize=0,
    ) as chat:  # fmt: skip
        assert chat.stdin is not None
        assert chat.stdout is not None
        assert chat.stderr is not None
        for _ in range(5):
            chat.stdin.write("/clear\nhello\n")
            chat.stdin.flush()
            assert "cut off" in read_until(chat.stderr, "\n", after="cut off")
            chat.send_signal(signal.SIGINT)
        chat.stdin.write("/quit\n")
        chat.stdin.flush()
        assert chat.wait(30) == 0


@pytest.mark.long
def test_ctrl_c_twice_at_the_prompt_leaves(path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "chat", str(path), *GREEDY],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as chat:  # fmt: skip
        assert chat.stdout is not None
        assert chat.stderr is not None
        assert chat.stdout.read(2) == "> "
        chat.send_signal(signal.SIGINT)
        # Signals of one number do not queue up: the second one is sent when the first was seen.
        assert "Ctrl-C again leaves" in read_until(chat.stderr, "\n", after="again")
        chat.send_signal(signal.SIGINT)
        assert chat.wait(30) == 130


def read_until(stream: IO[str], end: str, *, after: str) -> str:
    """Read up to the first ``end`` after the text ``after``."""
    found = ""
    while not (after in found and found.endswith(end)):
        piece = stream.read(1)
        assert piece, found
        found += piece
    return found


@pytest.mark.long
def test_help_explains_the_commands_of_a_chat(path: Path) -> None:
    text, errors = run("chat", path, *GREEDY, given="/help\n")
    assert text == "> > \n"
    for command in ("/clear", "/help", "/quit", "Ctrl-C"):
        assert f"\n{command}" in errors
    text, _ = run("chat", path, "--json", *GREEDY, given="/help\n")
    assert json.loads(text.splitlines()[1])["event"] == "help"


@pytest.mark.long
def test_a_context_that_is_rounded_up_is_told(path: Path) -> None:
    _, errors = run("chat", path, "--ctx", "300", given="")
    assert errors.startswith("llama, 512 positions (300 rounded up).")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["out.gguf", "--type", "q9_9"], "there is no type 'q9_9'; give f32, f16"),
        (["out.gguf", "--type", "q8_0", "--output-type", "q9"], "there is no type 'q9'"),
        (["out.gguf", "--type", "q8_0", "--keep", "("], "is no regular expression"),
        (["nowhere/out.gguf", "--type", "q8_0"], "there is no folder 'nowhere'"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_read(
    path: Path, given: list[str], names: str
) -> None:
    text, errors = run("gguf", "quantize", path, *given, status=2)
    assert (text, errors.count("\n")) == ("", 1)
    assert names in errors


def test_an_empty_file_and_a_file_that_is_no_matrix_are_named(path: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert "is empty: this is no GGUF file" in run("gguf", "info", empty, status=1)[1]
    (tmp_path / "x.dat").write_text("names of people")
    _, errors = run(
        "gguf", "quantize", path, tmp_path / "o.gguf", "--type", "q4_K", "--imatrix",
        tmp_path / "x.dat", status=1,
    )  # fmt: skip
    assert "it is neither a .dat nor a .gguf of llama.cpp" in errors


def test_errors_are_one_line(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    text, errors = run("generate", broken, "-p", "x", status=1)
    assert text == ""
    assert errors.startswith("python -m aggml: cannot open the model: ")
    assert errors.count("\n") == 1
    assert "no device" in run("generate", path, "--device", "X9", "-p", "x", status=1)[1].lower()
    assert "does not exist" in run("gguf", "info", tmp_path / "none", status=2)[1]
    assert "No such command" in run("nonesuch", status=2)[1]


def test_gguf_info_tells_what_is_in_the_file(path: Path) -> None:
    found = told("gguf", "info", path)
    assert found["metadata"]["general.architecture"] == "llama"
    assert found["metadata"]["tokenizer.ggml.tokens"]["length"] == len(llama_files.pieces()[0])
    names = {entry["name"]: entry for entry in found["tensors"]}
    assert names["blk.0.attn_q.weight"]["ne"] == [64, 64]
    text, _ = run("gguf", "info", path)
    assert "general.architecture = 'llama'" in text
    assert "  blk.0.attn_q.weight  f32  [64, 64]\n" in text


def test_gguf_quantize_writes_what_quantize_makes(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.gguf"
    found = told(
        "gguf", "quantize", path, target, "--type", "q8_0", "--output-type", "f16",
        "--keep", "attn_q",
    )  # fmt: skip
    assert found["bytes"] == target.stat().st_size < found["bytes_before"]
    weights = llama_files.weights("llama")
    with aggml.GGUFFile.open(path) as before, aggml.GGUFFile.open(target) as after:
        assert {k: repr(v) for k, v in after.metadata.items()} == {
            k: repr(v) for k, v in before.metadata.items()
        }
        types = {name: tensor.dtype.type_name for name, tensor in after.tensors.items()}
        assert types["blk.0.attn_q.weight"] == types["blk.0.attn_norm.weight"] == "f32"
        assert types["output.weight"] == types["token_embd.weight"] == "f16"
        assert types["blk.1.ffn_up.weight"] == "q8_0"
        blocks = aggml.quantize(weights["blk.1.ffn_up.weight"], "q8_0")
        assert np.array_equal(after.data("blk.1.ffn_up.weight"), blocks.reshape(-1))
    assert run("gguf", "check", target)[0] == "21 tensors, all whole\n"
    assert told("generate", target, "-p", "hello", *GREEDY)["ids"]


def test_gguf_check_names_what_is_wrong(tmp_path: Path) -> None:
    made = llama_files.weights("llama")
    made["blk.0.ffn_up.weight"][3, 4] = np.nan
    del made["blk.1.attn_norm.weight"]
    path = llama_files.write(tmp_path / "bad.gguf", tensors=made)
    text, _ = run("gguf", "check", path, status=1)
    assert text.splitlines() == [
        "blk.0.ffn_up.weight: 1 of its numbers are NaN or infinite",
        "the file has no tensor 'blk.1.attn_norm.weight'",
    ]


def test_a_model_over_several_devices_says_the_same(path: Path) -> None:
    alone = told("generate", path, "-p", "hello", *GREEDY)["ids"]
    both = told("generate", path, "-p", "hello", *GREEDY, "--device", "CPU", "--device", "CPU")
    assert both["ids"] == alone


@pytest.mark.long
def test_exit_statuses_are_those_of_the_help(path: Path, tmp_path: Path) -> None:
    """0: done; 1: the command failed; 2: wrong arguments; 130: Ctrl-C."""
    statuses = "0 after success, 1 if the command failed, 2 if the arguments are wrong, 130"
    assert statuses in " ".join(run("--help")[0].split())
    run("generate", path, "-p", "x", *GREEDY)
    run("embed", tmp_path, "x", status=1)
    run("generate", path, "--temperature", "-1", "-p", "x", status=2)
    run("generate", status=2)
    with subprocess.Popen(
        [*PROGRAM, "generate", str(path), "-p", "x", "-n", "100000", "--ctx", "60000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as generate:  # fmt: skip
        assert generate.stdout is not None
        assert generate.stderr is not None
        assert generate.stdout.read(8)
        generate.send_signal(signal.SIGINT)
        generate.stdout.read()
        assert generate.stderr.read().strip() == b""
        assert generate.wait(30) == 130
