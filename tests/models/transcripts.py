"""Answers with calls as models of each family write them, by the documentation of their formats.

Here: texts with what they mean. Not here: reading them (test_tools.py).
"""
# ruff: noqa: RUF001, E501 - marks and texts in other letters are what is tested

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

WEATHER: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "parts": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "code": {"type": "string"},
    },
    "required": ["city"],
}  # fmt: skip
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "weather", "description": "the weather",
                                      "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
                                                                    "properties": {}}}},
    {"type": "function", "function": {"name": "write_file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}}},
]  # fmt: skip

PARIS: Final = ("weather", {"city": "Paris", "days": 3})
NOW: Final[tuple[str, dict[str, Any]]] = ("now", {})


@dataclass(frozen=True)
class Transcript:
    """An answer and what it means."""

    form: str
    text: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    content: str = ""
    reasoning: str | None = None
    thoughts: str | None = None
    is_open: bool = False


LONG: Final = 'line "one"\n\ttwo </parameter > 😀 größe \\ ' * 12

TRANSCRIPTS: Final[dict[str, Transcript]] = {
    "hermes": Transcript("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>', [PARIS]),
    "hermes, two": Transcript("hermes", 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', [PARIS, NOW], "I look."),
    "hermes, arguments first": Transcript("hermes", '<tool_call>{"arguments": {"city": "Paris", "days": 3}, "name": "weather"}</tool_call>', [PARIS]),
    "hermes, as a text": Transcript("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 3}"}</tool_call>', [PARIS]),
    "hermes, not closed": Transcript("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}', [PARIS]),
    "hermes, no arguments": Transcript("hermes", '<tool_call>{"name": "now"}</tool_call>', [NOW]),
    "hermes, bare": Transcript("hermes", '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}', [PARIS]),
    "hermes, in a fence": Transcript("hermes", '```json\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n```', [PARIS]),
    "hermes, text after": Transcript("hermes", '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n\nDone <b>.', [NOW], "Done <b>."),
    "hermes, line feeds in a string": Transcript("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a\nb"}}</tool_call>', [("weather", {"city": "a\nb"})]),
    "hermes, marks within a string": Transcript("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>\\u00e9\\"}"}}</tool_call>', [("weather", {"city": '</tool_call>é"}'})]),
    "hermes, another tag": Transcript("hermes", "<tool_x> is no tag, nor is <tool_call", [], "<tool_x> is no tag, nor is <tool_call"),
    "hermes, unknown": Transcript("hermes", '<tool_call>{"name": "none", "arguments": {}}</tool_call>', [], '<tool_call>{"name": "none", "arguments": {}}</tool_call>'),
    "hermes, broken": Transcript("hermes", '<tool_call>{"name": "weather", "arguments": {city: 1}}</tool_call> x', [], '<tool_call>{"name": "weather", "arguments": {city: 1}}</tool_call> x'),
    "hermes, cut": Transcript("hermes", '<tool_call>{"name": "weather", "argume', [], '<tool_call>{"name": "weather", "argume'),
    "hermes, no call": Transcript("hermes", '{"name" is a key}', [], '{"name" is a key}'),
    "hermes, thinking": Transcript("hermes", '<think>\nI need it. <tool_call>\n</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>', [NOW], "", "I need it. <tool_call>", "think"),
    "hermes, open thinking": Transcript("hermes", 'I need it.\n</think>\n\nSo: 5 < 6', [], "So: 5 < 6", "I need it.", "think", is_open=True),
    "hermes, thinking cut": Transcript("hermes", "<think>I need </thin", [], "", "I need </thin", "think"),
    "granite": Transcript("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]', [PARIS, NOW]),
    "granite 3.1": Transcript("granite", '<tool_call>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]', [PARIS]),
    "nemotron": Transcript("nemotron", '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]</TOOLCALL>', [PARIS]),
    "hunyuan": Transcript("hunyuan", '<tool_calls>[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]</tool_calls>', [PARIS]),
    "phi4": Transcript("phi4", 'functools[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]', [PARIS]),
    "command": Transcript("command", '<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris", "days": 3}},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>', [PARIS, NOW], "", "I look.", "command"),
    "xlam": Transcript("xlam", '[{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]', [PARIS]),
    "llama": Transcript("llama", '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}', [PARIS]),
    "llama, with a mark": Transcript("llama", '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Paris", "days": 3}}', [PARIS]),
    "llama, two": Transcript("llama", '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}; {"name": "now", "parameters": {}}', [PARIS, NOW]),
    "llama, its own": Transcript("llama", '<|python_tag|>weather.call(city="Paris", days=3)', [PARIS]),
    "llama, text": Transcript("llama", '{"a": 1} is JSON', [], '{"a": 1} is JSON'),
    "llama4": Transcript("llama4", '[weather(city="Paris", days=3), now()]', [PARIS, NOW]),
    "llama4, with marks": Transcript("llama4", '<|python_start|>[weather(city="Paris", days=3)]<|python_end|>', [PARIS]),
    "llama4, values": Transcript("llama4", "[weather(city='a\"])', exact=True, parts=['x', \"y\"], where={'x': -1.5}, note=None)]", [("weather", {"city": 'a"])', "exact": True, "parts": ["x", "y"], "where": {"x": -1.5}, "note": None})]),
    "llama4, text": Transcript("llama4", "[1] a note, [now] another", [], "[1] a note, [now] another"),
    "llama4, code": Transcript("llama4", "[weather(city=__import__('os').name)]", [], "[weather(city=__import__('os').name)]"),
    "lfm2": Transcript("lfm2", '<|tool_call_start|>[weather(city="Paris", days=3)]<|tool_call_end|>I look.', [PARIS], "I look."),
    "mistral": Transcript("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]', [PARIS, NOW]),
    "mistral, spaces": Transcript("mistral", '[TOOL_CALLS] [{"arguments": {"city": "Paris", "days": 3}, "name": "weather", "id": "a23456789"}]', [PARIS]),
    "mistral_args": Transcript("mistral_args", '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]now[ARGS]{}', [PARIS, NOW]),
    "mistral_args, with ids": Transcript("mistral_args", '[TOOL_CALLS]weather[CALL_ID]a23456789[ARGS]{"city": "Paris", "days": 3}', [PARIS]),
    "mistral_args, thinking": Transcript("mistral_args", '[THINK]I look.[/THINK][TOOL_CALLS]now[ARGS]{}', [NOW], "", "I look.", "mistral"),
    "functionary": Transcript("functionary", '>>>weather\n{"city": "Paris", "days": 3}>>>now\n{}', [PARIS, NOW]),
    "functionary, text": Transcript("functionary", '>>>all\nI look.>>>weather\n{"city": "Paris", "days": 3}', [PARIS], "I look."),
    "kimi": Transcript("kimi", 'I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>', [PARIS, NOW], "I look."),
    "kimi, without the section": Transcript("kimi", '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|>', [PARIS]),
    "deepseek": Transcript("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [PARIS, NOW]),
    "deepseek, older": Transcript("deepseek", 'I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [PARIS], "I look."),
    "deepseek_markup": Transcript("deepseek_markup", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', [PARIS, NOW]),
    "glm4": Transcript("glm4", '<|assistant|>weather\n{"city": "Paris", "days": 3}', [PARIS]),
    "glm4, observed": Transcript("glm4", '<|assistant|>weather\n{"city": "Paris", "days": 3}<|observation|>', [PARIS]),
    "glm4, two": Transcript("glm4", '<|assistant|>\nI look.<|assistant|>weather\n{"city": "Paris", "days": 3}<|assistant|>now\n{}', [PARIS, NOW], "I look."),
    "glm4, text": Transcript("glm4", "<|assistant|>\nnow\n{} is no call", [], "now\n{} is no call"),
    "glm4, text without a line feed": Transcript("glm4", "<|assistant|>nowhere\n{}", [], "nowhere\n{}"),
    "glm4, a name alone": Transcript("glm4", "<|assistant|>now", [], "now"),
    "glm4, no object": Transcript("glm4", "<|assistant|>weather\nin [Paris]", [], "weather\nin [Paris]"),
    "glm": Transcript("glm", "<think></think>\nI look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>", [PARIS, NOW], "I look.", None, "think"),
    "glm, one line": Transcript("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>", [PARIS]),
    "minimax": Transcript("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', [PARIS, NOW]),
    "seed_oss": Transcript("seed_oss", "<seed:think>I look.</seed:think><seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>", [PARIS], "", "I look.", "seed_oss"),
    "qwen_coder": Transcript("qwen_coder", "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", [PARIS, NOW], "I look."),
    "qwen_coder, without the tag": Transcript("qwen_coder", "<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", [PARIS]),
    "qwen_coder, types": Transcript("qwen_coder", '<tool_call>\n<function=weather>\n<parameter=city>\n007\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=parts>\n["a", "b"]\n</parameter>\n<parameter=where>\n{"x": 1.5}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=code>\n{"a": "</b>"}\n  x\n</parameter>\n</function>\n</tool_call>', [("weather", {"city": "007", "exact": True, "parts": ["a", "b"], "where": {"x": 1.5}, "note": None, "code": '{"a": "</b>"}\n  x'})]),
    "qwen_coder, cut": Transcript("qwen_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nPa", [], "<tool_call>\n<function=weather>\n<parameter=city>\nPa"),
    "gemma4": Transcript("gemma4", '<|channel>thought\nI look.\n<channel|><|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>', [PARIS, NOW], "", "I look.", "gemma4"),
    "gemma4, values": Transcript("gemma4", '<|tool_call>call:weather{city:<|"|>a,}"b<|"|>,exact:true,parts:[<|"|>x<|"|>,<|"|>y<|"|>],where:{x:-1.5},note:null}<tool_call|>', [("weather", {"city": 'a,}"b', "exact": True, "parts": ["x", "y"], "where": {"x": -1.5}, "note": None})]),
    "function_gemma": Transcript("function_gemma", "<start_function_call>call:weather{city:<escape>Paris<escape>,days:3}<end_function_call>", [PARIS]),
    "harmony": Transcript("harmony", '<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 3}', [PARIS], "", "I look.", "harmony"),
    "harmony, recipient in the role": Transcript("harmony", '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris", "days": 3}<|call|>', [PARIS], "", None, "harmony"),
    "harmony, answer": Transcript("harmony", "<|channel|>analysis<|message|>2 < 3.<|end|><|start|>assistant<|channel|>final<|message|>Two <|.", [], "Two <|.", "2 < 3.", "harmony"),
    "harmony, preamble": Transcript("harmony", '<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>', [NOW], "I look.", None, "harmony"),
    "harmony, broken": Transcript("harmony", '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{city}<|call|>', [], "{city}", None, "harmony"),
    "harmony, plain": Transcript("harmony", "Just text.", [], "Just text.", None, "harmony"),
}  # fmt: skip


def long_ones() -> dict[str, Transcript]:
    """Calls with arguments so long that they are given as they come."""
    import json

    call = ("write_file", {"path": "a.txt", "text": LONG})
    arguments = json.dumps(call[1], ensure_ascii=False)
    return {
        "hermes, long": Transcript("hermes", f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>', [call]),
        "mistral_args, long": Transcript("mistral_args", f"[TOOL_CALLS]write_file[ARGS]{arguments}", [call]),
        "harmony, long": Transcript("harmony", f"<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>{arguments}<|call|>", [call], "", None, "harmony"),
        "qwen_coder, long": Transcript("qwen_coder", f"<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\n{LONG}\n</parameter>\n</function>\n</tool_call>", [call]),
    }  # fmt: skip
