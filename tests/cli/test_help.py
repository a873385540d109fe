"""The program's own description: --help of every command, completion in shells.

Not here: the commands (test_program.py and others).
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import click
import pytest
from cli.program import run
from click.testing import CliRunner

import aggml
from aggml.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


COMMANDS: Final = [" ".join(words) for words in commands(main)]


def command_of(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found


@pytest.mark.long(cases=5)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_help(command: str) -> None:
    text, errors = run(*command.split(), "--help")
    assert text.startswith("Usage: ")
    assert errors == ""
    assert "-h, --help  " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is_and_what_holds_without_it(command: str) -> None:
    found = command_of(command)
    context = click.Context(found, info_name=command)
    for option in found.params:
        if not isinstance(option, click.Option):
            continue
        record = option.get_help_record(context)
        assert record is not None
        text = record[1].partition("[")[0]
        assert len(text) > 3 or "default: " in record[1], option.name
        if not (option.is_flag and not option.secondary_opts):
            assert "default: " in record[1] or "required" in record[1], option.name


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"gguf"}))
def test_every_command_can_speak_json(command: str) -> None:
    assert any("--json" in option.opts for option in command_of(command).params)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["aggml", ""], {"chat", "generate", "serve", "bench", "ops", "gguf"}),
        (["aggml", "gguf", ""], {"info", "check", "convert", "quantize"}),
        (["aggml", "generate", "--ca"], {"--cache"}),
        (["aggml", "generate", "--cache", "q"], {"q8_0", "q4_0"}),
        (["aggml", "ops", "--device", ""], {"CPU"}),
        (["aggml", "gguf", "quantize", "a", "b", "--type", "Q4_"], {"q4_0", "q4_1", "q4_K"}),
    ],
)
def test_the_program_tells_shells_what_comes_next(
    shell: str, words: list[str], expected: set[str]
) -> None:
    # fish passes the word, other shells its number
    at = words[-1] if shell == "fish" else str(len(words) - 1)
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": at}
    done = CliRunner().invoke(
        main, [], prog_name="aggml", env={"_AGGML_COMPLETE": f"{shell}_complete", **asked}
    )
    assert (done.exit_code, done.stderr) == (0, "")
    told = done.stdout
    found = {part for line in told.splitlines() for part in line.replace("\t", ",").split(",")}
    assert expected <= found


#: Each script loads the completion as a start file does, then completes "aggml gen".
SHELLS: Final = {
    "bash": """
eval "$(_AGGML_COMPLETE=bash_source aggml)"
COMP_WORDS=(aggml gen) COMP_CWORD=1
_aggml_completion aggml
echo "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -U compinit && compinit -u -D
eval "$(_AGGML_COMPLETE=zsh_source aggml)"
[[ ${_comps[aggml]} == _aggml_completion ]] || exit 1
compdef () { }
_describe () { print -l ${(P)3} }
compadd () { print -l "${@[-1]}" ${(P)@[-1]} }
words=(aggml gen) CURRENT=2
_aggml_completion
""",
    "fish": """
_AGGML_COMPLETE=fish_source aggml | source
complete --do-complete "aggml gen"
""",
}


@pytest.mark.long
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_read_the_script_completes(shell: str, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "aggml").write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from aggml.cli import main; main()' \"$@\"\n",
        encoding="ascii",
    )
    (tmp_path / "aggml").chmod(0o755)
    done = subprocess.run(
        [found, "-c", SHELLS[shell]], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "generate" in re.split(r"[\s:]", done.stdout), (done.stdout, done.stderr)


def test_help_names_the_version_and_statuses() -> None:
    assert run("--version")[0] == f"aggml {aggml.__version__}\n"
    assert "2 if the arguments are wrong, 130" in " ".join(run("--help")[0].split())


#: Arguments of Python that have another name in the program, and those that it gives itself.
SPELT: Final = {"prompt", "progress", "_continue", "_grammar", "_place", "_shown", "_thinking"}


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_generate_and_chat_have_the_options_of_python_with_their_defaults(command: str) -> None:
    options = {x.name: x for x in command_of(command).params if isinstance(x, click.Option)}
    parameters = inspect.signature(aggml.models.TextModel.generate).parameters.values()
    for parameter in parameters:
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.name in SPELT:
            continue
        if command == "chat" and parameter.name in (
            "logprobs",
            "post_sampling_probs",
            "prompt_logprobs",
        ):
            assert parameter.name not in options
            continue
        if parameter.name == "adapter":
            assert "adapters" in options  # files, with which the model is loaded
            continue
        option = options[parameter.name]
        if command == "chat" and parameter.name in ("max_tokens", "temperature"):
            continue  # an answer of 24 tokens, always the same, is no conversation
        default = option.default if isinstance(option.default, (int, float)) else None
        assert default == (parameter.default or None) or default == parameter.default
