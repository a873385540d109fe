"""Writes calls of functions as models of each family do, with any arguments.

Not here: texts as models wrote them (transcripts.py), reading (test_tools.py).
"""
# ruff: noqa: RUF001, E501 - marks with wide characters

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["WRITERS", "Calls"]

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return _json({"name": name, "arguments": arguments})


def _python(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in arguments.items())


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _gemma(quote: str) -> Callable[[Any], str]:
    def written(value: Any) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{written(x)}" for k, x in value.items()) + "}"
        return _json(value)

    return written


_QUOTE: Final = '<|"|>'

WRITERS: Final[dict[str, Callable[[Calls], str]]] = {
    "hermes": lambda cs: "\n".join(f"<tool_call>\n{_call(n, a)}\n</tool_call>" for n, a in cs),
    "granite": lambda cs: "<|tool_call|>[" + ", ".join(_call(n, a) for n, a in cs) + "]",
    "nemotron": lambda cs: "<TOOLCALL>[" + ", ".join(_call(n, a) for n, a in cs) + "]</TOOLCALL>",
    "hunyuan": lambda cs: (
        "<tool_calls>[" + ", ".join(_call(n, a) for n, a in cs) + "]</tool_calls>"
    ),
    "phi4": lambda cs: "functools[" + ", ".join(_call(n, a) for n, a in cs) + "]",
    "command": lambda cs: (
        "<|START_ACTION|>["
        + ", ".join(_json({"tool_call_id": "0", "tool_name": n, "parameters": a}) for n, a in cs)
        + "]<|END_ACTION|>"
    ),
    "xlam": lambda cs: "[" + ", ".join(_call(n, a) for n, a in cs) + "]",
    "llama": lambda cs: (
        "<|python_tag|>" + "; ".join(_json({"name": n, "parameters": a}) for n, a in cs)
    ),
    "llama4": lambda cs: (
        "<|python_start|>[" + ", ".join(f"{n}({_python(a)})" for n, a in cs) + "]<|python_end|>"
    ),
    "lfm2": lambda cs: (
        "<|tool_call_start|>["
        + ", ".join(f"{n}({_python(a)})" for n, a in cs)
        + "]<|tool_call_end|>"
    ),
    "mistral": lambda cs: "[TOOL_CALLS][" + ", ".join(_call(n, a) for n, a in cs) + "]",
    "mistral_args": lambda cs: "".join(f"[TOOL_CALLS]{n}[ARGS]{_json(a)}" for n, a in cs),
    "functionary": lambda cs: "".join(f">>>{n}\n{_json(a)}" for n, a in cs),
    "kimi": lambda cs: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{_json(a)}<|tool_call_end|>"
            for i, (n, a) in enumerate(cs)
        )
        + "<|tool_calls_section_end|>"
    ),
    "deepseek": lambda cs: (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_json(a)}<｜tool▁call▁end｜>" for n, a in cs
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_markup": lambda cs: (
        "<｜DSML｜function_calls>\n"
        + "\n".join(
            f'<｜DSML｜invoke name="{n}">\n'
            + "".join(
                f'<｜DSML｜parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{_raw(v)}</｜DSML｜parameter>\n'
                for k, v in a.items()
            )
            + "</｜DSML｜invoke>"
            for n, a in cs
        )
        + "\n</｜DSML｜function_calls>"
    ),
    "glm": lambda cs: "\n".join(
        f"<tool_call>{n}\n"
        + "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{_raw(v)}</arg_value>\n" for k, v in a.items()
        )
        + "</tool_call>"
        for n, a in cs
    ),
    "glm4": lambda cs: "".join(f"<|assistant|>{n}\n{_json(a)}" for n, a in cs),
    "minimax": lambda cs: (
        "<minimax:tool_call>\n"
        + "\n".join(
            f'<invoke name="{n}">\n'
            + "".join(f'<parameter name="{k}">{_raw(v)}</parameter>\n' for k, v in a.items())
            + "</invoke>"
            for n, a in cs
        )
        + "\n</minimax:tool_call>"
    ),
    "seed_oss": lambda cs: "\n".join(
        f"<seed:tool_call>\n<function={n}>\n"
        + "".join(f"<parameter={k}>{_raw(v)}</parameter>\n" for k, v in a.items())
        + "</function>\n</seed:tool_call>"
        for n, a in cs
    ),
    "qwen_coder": lambda cs: "\n".join(
        f"<tool_call>\n<function={n}>\n"
        + "".join(f"<parameter={k}>\n{_raw(v)}\n</parameter>\n" for k, v in a.items())
        + "</function>\n</tool_call>"
        for n, a in cs
    ),
    "gemma4": lambda cs: "".join(
        f"<|tool_call>call:{n}{_gemma(_QUOTE)(a)}<tool_call|>" for n, a in cs
    ),
    "function_gemma": lambda cs: "".join(
        f"<start_function_call>call:{n}{_gemma('<escape>')(a)}<end_function_call>" for n, a in cs
    ),
    "harmony": lambda cs: "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{_json(a)}<|call|>"
        for n, a in cs
    ),
}
