"""The schema of requests: every field of every protocol, its type, bounds, default and meaning.

A field is built (a class here has it), an alias (`ALIASES`: another name of a built one), harmless
or refused (`OTHERS`: known from other servers). A field in none of these places is unknown: it is
ignored and told to the client, or refused if the service is strict. `/openapi.json`, the table of
docs/serve.md and the tests are made from this module. Not here: reading bodies (fields.py), what a
protocol makes of its fields (openai.py, responses.py, anthropic.py, llama.py, ollama.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

__all__ = [
    "ALIASES",
    "FORMS",
    "OTHERS",
    "AllowedFunctions",
    "AnthropicChoice",
    "AnthropicCount",
    "AnthropicMessage",
    "AnthropicOutput",
    "AnthropicRequest",
    "AnthropicThinking",
    "AnthropicTool",
    "Call",
    "Chat",
    "ChosenFunction",
    "Classify",
    "Completion",
    "ContentPart",
    "Detokenize",
    "Document",
    "Embeddings",
    "Extra",
    "Function",
    "FunctionCall",
    "FunctionChoice",
    "FunctionTool",
    "Generation",
    "Infill",
    "JsonSchema",
    "LlamaCompletion",
    "LlamaEmbedding",
    "LoraScale",
    "Message",
    "ModelChange",
    "ModelRequest",
    "OllamaBase",
    "OllamaCall",
    "OllamaChat",
    "OllamaEmbed",
    "OllamaFunction",
    "OllamaGenerate",
    "OllamaMessage",
    "OllamaOptions",
    "OllamaShow",
    "Other",
    "Pooling",
    "RealtimeAudio",
    "RealtimeEvent",
    "RealtimeFormat",
    "RealtimeInput",
    "RealtimeSession",
    "RealtimeTranscription",
    "RealtimeTurns",
    "RequestError",
    "Rerank",
    "ResponseFormat",
    "ResponsesFormat",
    "ResponsesReasoning",
    "ResponsesRequest",
    "ResponsesText",
    "Sampling",
    "Score",
    "StreamOptions",
    "StructuredOutputs",
    "TeiEmbed",
    "TeiEmbedSparse",
    "Template",
    "Tokenize",
    "Transcription",
    "about",
    "components",
]

DOCUMENTS: Final = 2048  # in one request to rerank
BEST: Final = 20  # most tokens whose probabilities are told beside each token
Anything = Any


def about(text: str, **bounds: Any) -> Meta:  # noqa: ANN401 as msgspec has it
    """The meaning of a field, and its bounds."""
    return Meta(description=text, **bounds)


_Continues = bool | Literal["auto"]
_Limit = Annotated[int, Meta(ge=-2, le=(1 << 31) - 1)]  # of tokens; below 0: as many as fit
_Stop = Annotated[str, Meta(max_length=1000)]
_Stops = _Stop | Annotated[list[_Stop], Meta(max_length=64)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Bias = Annotated[dict[_Token, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Texts = str | Annotated[list[str], Meta(min_length=1, max_length=DOCUMENTS)]
_Positive = Annotated[float, Meta(ge=0, le=1e6)]
_Scale = Annotated[float, Meta(ge=-1e6, le=1e6)]


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        status: the HTTP status.
        message: the reason.
        field: the field of the request that is wrong.
        code: OpenAI's code of the error, if it has one.
        retry: seconds after which the client may try again.
        more: further members of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry: float | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.code = code
        self.retry = retry
        self.more: dict[str, Any] = more or {}


def _no_prompt() -> Raw:
    return Raw(b"null")


# -- what all requests have


class ModelRequest(Struct, kw_only=True):
    """The fields of every request."""

    model: Annotated[
        str | None, about("a name of `/v1/models`; without it the first model that can answer")
    ] = None
    adapter: Annotated[
        str | Annotated[dict[str, _Scale], Meta(max_length=64)] | None,
        about("the name of a LoRA adapter of the model (`--adapter`), or an object of names and "
              "scales, whose effects are added up; `model` may be such a name, too"),
    ] = None  # fmt: skip
    priority: Annotated[
        int,
        about("greater ones come first, and preempt smaller ones, which go on later with the same "
              "tokens", ge=-(1 << 31), le=1 << 31),
    ] = 0  # fmt: skip
    user: Annotated[
        Any, about("whose request it is: users of one priority share the model fairly")
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        about("seconds until the answer must be complete; a request that is predicted to take "
              "longer is refused at once"),
    ] = None  # fmt: skip


class StreamOptions(Struct):
    """What a stream contains beside the answer."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = None  # usage in every event
    include_obfuscation: bool | None = None  # would pad events; changes no answer


class StructuredOutputs(Struct):
    """vLLM's ways to constrain an answer; one of them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: None = None  # not built
    whitespace_pattern: None = None
    disable_any_whitespace: bool | None = None  # JSON is written on one line
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None


class LoraScale(Struct):
    """An adapter of the model, and what its effect is multiplied by."""

    id: Annotated[int, Meta(ge=0, le=1 << 20)]
    scale: _Scale = 1.0


class Sampling(ModelRequest, kw_only=True):
    """How tokens are chosen; the names are those of OpenAI, vLLM and llama.cpp."""

    temperature: Annotated[
        float, about("0 takes the best token; negative ones, too", ge=-1, le=100)
    ] = 0.8
    top_p: Annotated[float, about("0 takes the best token", ge=0, le=1)] = 0.95
    top_k: Annotated[
        int, about("0 and -1: among all tokens", ge=-1, le=(1 << 31) - 1)
    ] = 40  # fmt: skip
    min_p: Annotated[float, about("at least so many times the best one's", ge=0, le=1)] = 0.0
    typical_p: Annotated[float, about("locally typical sampling; 1: off", ge=0, le=1)] = 1.0
    top_n_sigma: Annotated[
        float, about("within so many standard deviations; 0, -1: off", ge=-1)
    ] = 0.0
    xtc_probability: Annotated[
        float, about("how often the best tokens are left out", ge=0, le=1)
    ] = 0.0
    xtc_threshold: Annotated[float, about("of the tokens that XTC leaves out", ge=0, le=1)] = 0.1
    dry_multiplier: Annotated[float, about("penalty of repeated passages; 0: off", ge=0)] = 0.0
    dry_base: Annotated[float, about("how fast that penalty grows", ge=1)] = 1.75
    dry_allowed_length: Annotated[
        int, about("tokens of a repetition that cost nothing", ge=0, le=1 << 20)
    ] = 2
    dry_range: Annotated[int, about("tokens that DRY looks at; -1: all", ge=-1)] = -1
    dry_breakers: Annotated[
        Annotated[list[str], Meta(max_length=64)] | None,
        about("texts that end a repeated passage"),
    ] = None
    dynatemp_range: Annotated[float, about("dynamic temperature; 0: off", ge=0, le=100)] = 0.0
    dynatemp_exponent: Annotated[float, about("of the dynamic temperature", ge=0)] = 1.0
    mirostat: Annotated[Literal[0, 1, 2], about("its version; 0: off")] = 0
    mirostat_tau: Annotated[float, about("the surprise that mirostat aims at", ge=0)] = 5.0
    mirostat_eta: Annotated[float, about("how fast mirostat learns", ge=0)] = 0.1
    samplers: Annotated[
        list[str] | str | None, about("names of samplers, in the order in which they are applied")
    ] = None
    presence_penalty: Annotated[
        float, about("subtracted from the logits of tokens that the answer has", ge=-2, le=2)
    ] = 0.0
    frequency_penalty: Annotated[
        float, about("the same, for each time that the answer has the token", ge=-2, le=2)
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        about("for tokens of prompt and answer: logits above 0 are divided by it, others "
              "multiplied", ge=0.01, le=100),
    ] = 1.0  # fmt: skip
    logit_bias: Annotated[_Bias, about("added to the logits of these tokens")] = {}
    seed: Annotated[
        int | None, about("any whole number; -1: a different one each time; each of the `n` "
                          "answers draws its own tokens"),
    ] = None  # fmt: skip
    stop: Annotated[
        _Stops,
        about("up to 64 texts of 1,000 characters; the text that ends an answer is not part of it; "
              "of several the one that is complete first counts"),
    ] = []  # fmt: skip
    stop_token_ids: Annotated[list[_Token], about("tokens that end it", max_length=64)] = []
    min_tokens: Annotated[
        int,
        about("no answer ends before: until then end tokens cannot be drawn, and stop texts are "
              "not looked for", ge=0, le=1 << 20),
    ] = 0  # fmt: skip
    ignore_eos: Annotated[bool, about("go on after a token that ends a text")] = False
    json_schema: Annotated[Any, about("a JSON schema; the answer is JSON of it")] = None
    regex: Annotated[str | None, about("the answer matches this expression")] = None
    choice: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=4096)] | None,
        about("the answer is one of these texts"),
    ] = None
    grammar: Annotated[str | None, about("GBNF or Lark; the answer is a text of it")] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, about("vLLM's object with json, regex, choice or grammar")
    ] = None
    include_stop: Annotated[bool, about("the stop text that ends the answer is part of it")] = False
    show_special: Annotated[bool, about("names of control tokens are part of the text")] = False
    skip_special_tokens: Annotated[bool, about("false: the same as `show_special`")] = True
    allowed_ids: Annotated[
        Annotated[list[_Token], Meta(min_length=1, max_length=1 << 20)] | None,
        about("the answer has no other tokens; only if one that ends it is among them, it can end "
              "by itself"),
    ] = None  # fmt: skip
    bad_words: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=1024)]
        | None,
        about("texts that the answer does not have, also not within longer words"),
    ] = None
    lora: Annotated[
        Annotated[list[LoraScale], Meta(max_length=64)] | None,
        about("adapters by their numbers in `/lora-adapters`, each with its `scale`, instead of "
              "`adapter`"),
    ] = None  # fmt: skip


class Generation(Sampling, kw_only=True):
    """The fields that completions and chats share."""

    n: Annotated[int, about("answers to each prompt", ge=1, le=64)] = 1
    stream: Annotated[bool, about("send the answer as server-sent events")] = False
    stream_options: Annotated[
        StreamOptions | None,
        about("`include_usage`: the event before the last one has the usage; only with `stream`"),
    ] = None
    return_token_ids: Annotated[
        bool, about("each choice has its `token_ids`, and the answer the `prompt_token_ids`")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, about("tokens are called `token_id:5` in `logprobs`")
    ] = False
    prompt_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=BEST)] | None,
        about("tell of each token of the prompt how probable it was, with so many of the most "
              "probable ones in its place; the answer cannot be a stream"),
    ] = None  # fmt: skip
    truncate_prompt: Annotated[
        Annotated[int, Meta(ge=-1, le=1 << 31)] | None,
        about("of a longer prompt the last so many tokens are taken; -1: as many as fit beside the "
              "answer; 0: all, as without it"),
    ] = None  # fmt: skip
    truncation_side: Annotated[
        Literal["left"] | None, about("where `truncate_prompt` cuts: the end of a prompt stays")
    ] = None
    timings_per_token: Annotated[
        bool, about("the answer and each event with tokens have llama-server's `timings`")
    ] = False
    return_progress: Annotated[
        bool,
        about("a stream begins with events of `prompt_progress`: how many tokens of the prompt are "
              "computed"),
    ] = False  # fmt: skip


# -- OpenAI


class Completion(Generation, kw_only=True):
    """`/v1/completions`: a text to continue."""

    prompt: Annotated[
        Raw, about("a text, a list of tokens, or several of these; null begins a new text")
    ]
    suffix: Annotated[
        str | None,
        about("the text after the answer: the model fills the middle, if its file names the tokens "
              "for that"),
    ] = None  # fmt: skip
    echo: Annotated[
        bool, about("the answer begins with the prompt; with `logprobs` those of the prompt, too")
    ] = False
    max_tokens: Annotated[
        _Limit, about("of the answer; -1: as many as the context has room for")
    ] = 16
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        about("so many answers are made, and the `n` whose tokens are the most probable ones on "
              "average are given; more than `n` only without `stream`"),
    ] = None  # fmt: skip
    add_special_tokens: Annotated[bool, about("false: no BOS or EOS is put around a text")] = True
    response_format: Annotated[
        ResponseFormat | None, about("text, json_object, or json_schema with a schema")
    ] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=BEST)] | None,
        about("so many of the most probable tokens beside each one, before temperature, penalties "
              "and biases"),
    ] = None  # fmt: skip


class FunctionCall(Struct):
    """A call that a model asks for."""

    name: str = ""
    arguments: str | dict[str, Any] | None = ""


class Call(Struct):
    """A call in a message of the assistant."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class ContentPart(Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    video_url: Any = None
    input_video: Any = None
    file: Any = None
    thinking: Any = None
    cache_control: Any = None  # changes when an answer comes, not what it is
    annotations: Any = None
    logprobs: Any = None


class Message(Struct):
    """A message of a conversation. Null and empty fields are allowed, as answers have them."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None  # for the model's template
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, by vLLM's name
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    audio: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: None = None
    prefix: bool | None = None  # of the last message: it is to be continued


class JsonSchema(Struct):
    """The `json_schema` of a `response_format`."""

    name: str = "answer"
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct):
    """What an answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None  # llama.cpp has it here, too


class Function(Struct):
    """A function that the model may call."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct):
    """A tool; only functions are built."""

    function: Function
    type: Literal["function"] = "function"
    cache_control: Any = None


class ChosenFunction(Struct):
    """The name of a function."""

    name: str


class AllowedFunctions(Struct):
    """The functions that may be called, or one of which must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class FunctionChoice(Struct):
    """The function that must be called, or those that may be."""

    function: ChosenFunction | None = None
    allowed_tools: AllowedFunctions | None = None
    type: Literal["function", "allowed_tools"] = "function"


class Chat(Generation, kw_only=True):
    """`/v1/chat/completions`: a conversation to continue."""

    messages: Annotated[
        list[Message],
        about("they go through the model's template; names of control tokens in them stay text; "
              "the answer continues a last message of the assistant if `continue_final_message` or "
              "its `prefix` says so", min_length=1),
    ]  # fmt: skip
    max_tokens: Annotated[
        _Limit | None, about("of the answer; null: 1,024, or what fits; -1: as many as fit")
    ] = None
    max_completion_tokens: Annotated[_Limit | None, about("the newer name of `max_tokens`")] = None
    logprobs: Annotated[
        bool, about("tell each token's probability, before temperature, penalties and biases")
    ] = False
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=BEST)] | None,
        about("so many of the most probable tokens, too"),
    ] = None
    tools: Annotated[list[FunctionTool] | None, about("functions that the model may call")] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | FunctionChoice | None, about("whether it calls one")
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("false: at most one call in an answer")
    ] = None  # fmt: skip
    response_format: Annotated[
        ResponseFormat | None, about("text, json_object, or json_schema with a schema")
    ] = None
    reasoning_effort: Annotated[
        _Effort | None, about('how much the model thinks; "none": not at all')
    ] = None
    thinking_budget: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("tokens after which thinking is ended; below 0: none"),
    ] = None
    include_reasoning: Annotated[bool, about("whether the answer has the thoughts, too")] = True
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, about("names for the model's template, such as `enable_thinking`")
    ] = None
    continue_final_message: Annotated[
        _Continues,
        about('continue the last message, which is the assistant\'s; "auto": if it is the '
              "assistant's, as llama-server does"),
    ] = False  # fmt: skip
    add_generation_prompt: Annotated[
        bool | None,
        about("true cannot stand beside `continue_final_message`; the answer begins a message if "
              "that is not set"),
    ] = None  # fmt: skip
    verbose: Annotated[bool, about("the answer has its prompt as text in `__verbose`")] = False


class Embeddings(ModelRequest, kw_only=True):
    """`/v1/embeddings`: texts to embed."""

    input: Annotated[
        Raw, about("a text, a list of tokens, or up to 2,048 of these (`--max-inputs`)")
    ]
    truncate_prompt: Annotated[
        Annotated[int, Meta(ge=-1, le=1 << 31)] | None,
        about("a longer text is cut to so many tokens; -1: to what the model takes"),
    ] = None
    truncation_side: Annotated[
        Literal["right"] | None, about("where `truncate_prompt` cuts: the beginning stays")
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        about("the vector is cut to its first so many numbers, and scaled to length 1 again"),
    ] = None  # fmt: skip
    pooling: Annotated[
        Literal["none"] | None,
        about("none is refused: each text has one vector; `/embeddings` gives those of its tokens"),
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"], about("base64: of little-endian float32")
    ] = "float"


class Pooling(ModelRequest, kw_only=True):
    """`/pooling`: texts, of which each token gets a vector; the form of vLLM."""

    input: Annotated[Raw, about("a text, or up to 2,048 of them (`--max-inputs`)")]
    task: Annotated[
        Literal["token_embed", "embed"], about("vectors of all tokens, or one of each text")
    ] = "token_embed"
    normalize: Annotated[
        bool | None, about("whether vectors have length 1; default: those of whole texts")
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"], about("base64: of little-endian float32, row by row")
    ] = "float"


class Document(Struct):
    """A document to rank. Other fields than its text are ignored, as Cohere does."""

    text: str
    title: Any = None
    id: Any = None


class Rerank(ModelRequest, kw_only=True):
    """`/v1/rerank`: documents to put in order by how well they answer a query."""

    query: Annotated[str, about("a text", min_length=1)]
    documents: Annotated[
        Annotated[list[str | Document], Meta(min_length=1, max_length=DOCUMENTS)] | None,
        about("1 to 2,048 texts, or objects with a `text`; the query and one document together "
              "must fit into the model's context, unless they may be cut"),
    ] = None  # fmt: skip
    texts: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=DOCUMENTS)] | None,
        about("the same by TEI's name: then the answer is TEI's list of index and score"),
    ] = None  # fmt: skip
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about("the number of results, the best ones"),
    ] = None
    return_documents: Annotated[bool, about("each result contains its document")] = False
    return_text: Annotated[bool, about("the same, of TEI")] = False
    raw_scores: Annotated[bool, about("of TEI; false: scores go through a sigmoid")] = False
    truncate: Annotated[bool, about("of TEI; cut documents that are too long")] = False
    truncate_prompt: Annotated[
        Annotated[int, Meta(ge=-1, le=1 << 31)] | None,
        about(
            "cut documents so that they have so many tokens with the query; -1: so that they fit"
        ),
    ] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 31)] | None,
        about("of Cohere; cut documents to so many tokens, and so that they fit; 0: do not"),
    ] = None
    use_activation: Annotated[
        bool | None,
        about("of vLLM; true: scores go through a sigmoid; false: the numbers of the rank head as "
              "they are; default: those of `TextModel.rerank`"),
    ] = None  # fmt: skip
    activation: Annotated[bool | None, about("its older name")] = None

    @property
    def found(self) -> list[str]:
        """The texts of the documents."""
        given = self.texts if self.documents is None else self.documents
        return [x if isinstance(x, str) else x.text for x in given or ()]


class Score(ModelRequest, kw_only=True):
    """`/score`: how well texts fit to others, in pairs; the form of vLLM."""

    text_1: Annotated[
        _Texts, about("a text, or a list of them; `queries` and `data_1` are the same")
    ]
    text_2: Annotated[
        _Texts,
        about("a text, or a list of them: with one `text_1` all are scored with it, else there are "
              "as many; `documents`, `items` and `data_2` are the same"),
    ]  # fmt: skip
    truncate_prompt: Annotated[
        Annotated[int, Meta(ge=-1, le=1 << 31)] | None,
        about("cut the second text of a pair so that both have so many tokens; -1: so that they "
              "fit; of a model without a rank head each text"),
    ] = None  # fmt: skip
    use_activation: Annotated[
        bool | None,
        about("false: the numbers of the rank head as they are; else they go through a sigmoid"),
    ] = None
    activation: Annotated[bool | None, about("its older name")] = None

    @property
    def activated(self) -> bool:
        """Whether numbers become probabilities."""
        given = self.activation if self.use_activation is None else self.use_activation
        return given is not False


class Classify(ModelRequest, kw_only=True):
    """`/classify`: the class of each text; the form of vLLM."""

    input: Annotated[Raw, about("a text, tokens, or up to 2,048 of them (`--max-inputs`)")]
    truncate_prompt: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("cut a text to its first so many tokens; -1: to what the model takes"),
    ] = None
    truncation_side: Annotated[
        Literal["right"] | None, about("where `truncate_prompt` cuts: the beginning stays")
    ] = None
    use_activation: Annotated[
        bool | None,
        about("false: the numbers of the head as they are; else probabilities, by a softmax over "
              "the classes, or a sigmoid if there is one class"),
    ] = None  # fmt: skip
    activation: Annotated[bool | None, about("its older name")] = None

    @property
    def activated(self) -> bool:
        """Whether numbers become probabilities."""
        given = self.activation if self.use_activation is None else self.use_activation
        return given is not False


class Transcription(ModelRequest, kw_only=True):
    """The fields of `/v1/audio/transcriptions` and `translations` beside the file."""

    language: Annotated[
        str | None, about("a code such as `de`; without it the model finds out")
    ] = None
    prompt: Annotated[str, about("a text that came before", max_length=4096)] = ""
    response_format: Annotated[
        Literal["json", "text", "srt", "verbose_json", "vtt"], about("what the answer looks like")
    ] = "json"
    temperature: Annotated[float, about("0: raised where the model is not sure", ge=0, le=1)] = 0.0
    timestamp_granularities: Annotated[
        list[Literal["segment", "word"]],
        about("of `verbose_json`: `word` gives the time of each word, `segment` the segments"),
    ] = []
    stream: Annotated[bool, about("an event for each segment")] = False
    beam_size: Annotated[
        int,
        about("texts of a window that are continued side by side, at most `--slots`; the most "
              "probable one is kept", ge=1, le=64),
    ] = 1  # fmt: skip
    compression_ratio_threshold: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        about("a text that zlib makes more than so many times shorter repeats itself, and is tried "
              "again at a higher temperature; `null`: none does"),
    ] = 2.4  # fmt: skip
    logprob_threshold: Annotated[
        float | None,
        about("a text whose tokens have a lower mean logarithm of their probabilities is a guess, "
              "and is tried again at a higher temperature; `null`: none is"),
    ] = -1.0  # fmt: skip
    no_speech_threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("a guess is left out if the probability of silence is above this; `null`: none is"),
    ] = 0.6


# -- OpenAI's sessions of speech that goes on


class RealtimeFormat(Struct):
    """What the bytes of a sound mean: integers of 16 bits, or G.711 of 8,000 samples a second."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, Meta(ge=8000, le=48000)] | None = None


class RealtimeTranscription(Struct):
    """How a turn is transcribed. A member that is left out stays as it is."""

    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: Annotated[str, Meta(max_length=4096)] | UnsetType | None = UNSET
    keywords: (
        Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=100)]
        | UnsetType
        | None
    ) = UNSET


class RealtimeTurns(Struct):
    """How a detector of speech finds the turns. A member that is left out stays as it is."""

    type: str | UnsetType = UNSET  # server_vad
    threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] | UnsetType | None = UNSET
    silence_duration_ms: Annotated[int, Meta(ge=32, le=10000)] | UnsetType | None = UNSET
    create_response: bool | None = None  # there are no responses in these sessions
    interrupt_response: bool | None = None


class RealtimeInput(Struct):
    """What comes in. A member that is left out stays as it is."""

    format: RealtimeFormat | UnsetType | None = UNSET
    transcription: RealtimeTranscription | UnsetType | None = UNSET
    turn_detection: RealtimeTurns | UnsetType | None = UNSET
    noise_reduction: Any = None


class RealtimeAudio(Struct):
    """What comes in; nothing goes out."""

    input: RealtimeInput | None = None


class RealtimeSession(Struct):
    """The settings of a session. A member that is left out stays as it is."""

    type: str = "transcription"
    audio: RealtimeAudio | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None


class RealtimeEvent(Struct, kw_only=True):
    """An event that the client sends over the WebSocket."""

    type: Annotated[
        str, about("`session.update`, `transcription_session.update`, `input_audio_buffer.append`, "
                   "`input_audio_buffer.commit` or `input_audio_buffer.clear`")
    ]  # fmt: skip
    event_id: Annotated[
        Annotated[str, Meta(max_length=512)] | None, about("comes back in an error of the event")
    ] = None
    audio: Annotated[bytes | None, about("of `append`: bytes of the sound in base64")] = None
    session: Annotated[
        RealtimeSession | None, about("of `update`: settings; what it lacks stays as it is")
    ] = None


# -- OpenAI's responses


class ResponsesReasoning(Struct):
    """How the model thinks."""

    effort: _Effort | None = None
    summary: Any = None  # thoughts are told as they are
    generate_summary: Any = None


class ResponsesFormat(Struct):
    """What the text of an answer looks like."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponsesText(Struct):
    """The text of an answer."""

    format: ResponsesFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(ModelRequest, kw_only=True):
    """`/v1/responses`: what to answer, and what went before."""

    input: Annotated[
        str | list[dict[str, Any]],
        about("a text, or items: messages, `function_call`, `function_call_output`, `reasoning`"),
    ] = []  # fmt: skip
    instructions: Annotated[str | None, about("the system message of this answer")] = None
    previous_response_id: Annotated[
        str | None,
        about("an answer that this one follows; the service keeps the last 256 in memory"),
    ] = None
    max_output_tokens: Annotated[_Limit | None, about("thoughts included")] = None
    temperature: Annotated[float, about("as of a chat", ge=0, le=100)] = 0.8
    top_p: Annotated[float, about("as of a chat", ge=0, le=1)] = 0.95
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=BEST)] | None,
        about("needs `include`"),
    ] = None
    seed: Annotated[int | None, about("as of a chat")] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        about("functions; tools that OpenAI's servers run themselves are ignored and told"),
    ] = None  # fmt: skip
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Any] | None, about("as of a chat")
    ] = None
    parallel_tool_calls: Annotated[bool | None, about("as of a chat")] = None
    text: Annotated[ResponsesText | None, about("`format`: text, json_object or json_schema")] = (
        None
    )
    reasoning: Annotated[ResponsesReasoning | None, about("`effort`")] = None
    stream: Annotated[bool, about("send events")] = False
    stream_options: Annotated[StreamOptions | None, about("has no effect here")] = None
    timings_per_token: Annotated[
        bool, about("the answer and each event with text have llama-server's `timings`")
    ] = False
    return_progress: Annotated[
        bool,
        about("a stream begins with events of `prompt_progress`: how many tokens of the prompt are "
              "computed"),
    ] = False  # fmt: skip
    store: Annotated[bool | None, about("keep it for `previous_response_id`; default true")] = None
    include: Annotated[list[str] | None, about("`message.output_text.logprobs`")] = None
    metadata: Annotated[dict[str, Any] | None, about("comes back in the answer")] = None
    truncation: Annotated[Literal["disabled"] | None, about("what is too long is refused")] = None
    background: Annotated[Literal[False] | None, about("answers are not made in background")] = None


# -- Anthropic


class AnthropicThinking(Struct):
    """Whether the model thinks."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None
    display: Any = None


class AnthropicOutput(Struct):
    """What an answer looks like."""

    effort: _Effort | None = None
    format: dict[str, Any] | None = None


class AnthropicChoice(Struct):
    """Whether a tool is called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicMessage(Struct):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class AnthropicTool(Struct):
    """A tool."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    defer_loading: Any = None
    input_examples: Any = None


class AnthropicCount(ModelRequest, kw_only=True):
    """`/v1/messages/count_tokens`: a conversation whose tokens are counted."""

    messages: Annotated[
        list[AnthropicMessage],
        about("texts, `tool_use`, `tool_result` and `thinking`; a last message of the assistant is "
              "continued", min_length=1),
    ]  # fmt: skip
    system: Annotated[str | list[dict[str, Any]] | None, about("a text, or blocks of text")] = None
    tools: Annotated[list[AnthropicTool] | None, about("functions")] = None
    tool_choice: Annotated[AnthropicChoice | None, about("auto, any, tool or none")] = None
    thinking: Annotated[
        AnthropicThinking | None, about("enabled with `budget_tokens`, adaptive, or disabled")
    ] = None
    output_config: Annotated[
        AnthropicOutput | None, about("`effort`, and `format` with a schema")
    ] = None


class AnthropicRequest(AnthropicCount, kw_only=True):
    """`/v1/messages`: a conversation to continue."""

    max_tokens: Annotated[int, about("of the answer, thoughts included", ge=1, le=(1 << 31) - 1)]
    temperature: Annotated[float, about("0 takes the best token", ge=0, le=100)] = 0.8
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("as of a chat"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None,
        about("as of a chat"),
    ] = None
    stop_sequences: Annotated[list[_Stop], about("texts that end it", max_length=64)] = []
    stream: Annotated[bool, about("send events")] = False
    metadata: Annotated[dict[str, Any] | None, about("`user_id`: whose request it is")] = None


# -- llama-server


class LlamaCompletion(Sampling, kw_only=True):
    """`/completion`: a text to continue, in llama-server's form."""

    prompt: Annotated[Raw, about("a text, tokens, texts and tokens mixed, or several of these")]
    n_predict: Annotated[
        _Limit, about("tokens of the answer; -1: as many as fit; 0: compute the prompt alone")
    ] = -1
    n_cmpl: Annotated[int, about("answers to each prompt", ge=1, le=64)] = 1
    stream: Annotated[bool, about("send the answer as server-sent events")] = False
    n_probs: Annotated[int, about("so many probable tokens beside each one", ge=0, le=BEST)] = 0
    post_sampling_probs: Annotated[
        bool, about("`n_probs` tells the probabilities with which tokens are drawn")
    ] = False
    return_tokens: Annotated[bool, about("the answer has its `tokens`")] = False
    response_fields: Annotated[
        list[str] | None, about("the fields of the answer; `a/b` is taken out of `a`")
    ] = None
    t_max_predict_ms: Annotated[
        int, about("milliseconds after the first token, then the answer ends at a line's end", ge=0)
    ] = 0
    logit_bias: Annotated[
        Any, about("pairs of a token or a text with a number or false, or OpenAI's object")
    ] = None
    min_p: Annotated[float, about("as above", ge=0, le=1)] = 0.05
    timings_per_token: Annotated[bool, about("each event has `timings`")] = False
    return_progress: Annotated[
        bool,
        about("a stream begins with events of `prompt_progress`: how many tokens of the prompt are "
              "computed"),
    ] = False  # fmt: skip


class Extra(Struct):
    """A text beside the one that is filled."""

    text: str
    filename: str = ""


class Infill(LlamaCompletion, kw_only=True):
    """`/infill`: a gap to fill, in llama-server's form."""

    prompt: Annotated[Raw, about("how the answer begins")] = msgspec.field(
        default_factory=_no_prompt
    )
    input_prefix: Annotated[str, about("the text before the gap")] = ""
    input_suffix: Annotated[str, about("the text after it")] = ""
    input_extra: Annotated[
        list[Extra] | None, about("other files, each with a name and a text")
    ] = None
    n_indent: Annotated[Literal[0] | None, about("lines of any indentation are accepted")] = None


class Tokenize(ModelRequest, kw_only=True):
    """`/tokenize`: a text whose tokens are asked for."""

    content: Annotated[str | None, about("the text")] = None
    prompt: Annotated[str | None, about("the same by vLLM's name: then the answer is vLLM's")] = (
        None
    )
    messages: Annotated[list[Message] | None, about("a conversation, as vLLM has it")] = None
    add_special: Annotated[bool, about("whether BOS and EOS are put around")] = False
    add_special_tokens: Annotated[bool, about("the same, of vLLM")] = True
    parse_special: Annotated[bool, about("whether names of control tokens are these tokens")] = True
    with_pieces: Annotated[bool, about("each token with its text")] = False
    tools: Annotated[list[FunctionTool] | None, about("with `messages`, as of a chat")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, about("with `messages`, as of a chat")
    ] = None
    continue_final_message: Annotated[
        _Continues, about("with `messages`: end within the last one")
    ] = False
    add_generation_prompt: Annotated[
        bool | None, about("with `messages`; false: do not begin a message of the assistant")
    ] = None
    return_token_strs: Annotated[bool, about("of vLLM: names of the tokens, too")] = False


class Detokenize(ModelRequest, kw_only=True):
    """`/detokenize`: tokens whose text is asked for."""

    tokens: Annotated[list[_Token], about("the tokens")]


class Template(ModelRequest, kw_only=True):
    """`/apply-template`: a conversation whose prompt is asked for."""

    messages: Annotated[list[Message], about("as of a chat", min_length=1)]
    tools: Annotated[list[FunctionTool] | None, about("as of a chat")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, about("as of a chat")] = None
    reasoning_effort: Annotated[_Effort | None, about("as of a chat")] = None
    continue_final_message: Annotated[_Continues, about("end within the last message")] = False
    add_generation_prompt: Annotated[
        bool | None, about("false: do not begin a message of the assistant")
    ] = None


class LlamaEmbedding(ModelRequest, kw_only=True):
    """`/embedding`: texts to embed, in llama-server's form."""

    content: Annotated[Raw, about("as `input` of `/v1/embeddings`")] = msgspec.field(
        default_factory=_no_prompt
    )
    input: Annotated[Raw, about("the same")] = msgspec.field(default_factory=_no_prompt)
    embd_normalize: Annotated[
        Literal[-1, 2], about("-1: as the model gives them; 2: of length 1")
    ] = 2
    pooling: Annotated[
        Literal["none"] | None, about("none: a vector for each token of a text, as it is")
    ] = None


class TeiEmbed(ModelRequest, kw_only=True):
    """`/embed`: texts to embed, in the form of text-embeddings-inference."""

    inputs: Annotated[Raw, about("as `input` of `/v1/embeddings`")]
    normalize: Annotated[bool, about("whether vectors have length 1")] = True
    truncate: Annotated[bool, about("cut what is too long")] = False


class TeiEmbedSparse(ModelRequest, kw_only=True):
    """`/embed_sparse`: texts of which weights of words are made, as text-embeddings-inference."""

    inputs: Annotated[Raw, about("as `input` of `/v1/embeddings`")]
    truncate: Annotated[bool, about("cut what is too long")] = False


class ModelChange(ModelRequest, kw_only=True):
    """`/models/load` and `/models/unload`: a model of `--memory`."""


# -- Ollama


class OllamaOptions(Struct, kw_only=True):
    """The `options` of Ollama."""

    num_predict: _Limit = -1
    temperature: Annotated[float, Meta(ge=-1, le=100)] = 0.8
    top_p: _Unit = 0.95
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = 40
    min_p: _Unit = 0.0
    typical_p: _Unit = 1.0
    seed: int | None = None
    stop: _Stops = []
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    repeat_last_n: Any = None
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: _Positive = 5.0
    mirostat_eta: _Positive = 0.1
    num_ctx: Any = None  # the service's --ctx holds
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    num_thread: Any = None
    main_gpu: Any = None
    use_mmap: Any = None
    numa: Any = None


_Think = bool | Literal["low", "medium", "high"]


class OllamaBase(ModelRequest, kw_only=True):
    """What Ollama's routes that generate text share."""

    stream: Annotated[bool, about("a line of JSON for each piece")] = True
    format: Annotated[
        Literal["", "json"] | dict[str, Any] | None, about('"json", or a JSON schema')
    ] = None
    options: Annotated[OllamaOptions | None, about("num_predict, temperature, ...")] = None
    think: Annotated[_Think | None, about("whether the model thinks")] = None
    keep_alive: Annotated[Any, about("has no effect: the service keeps its models")] = None
    logprobs: Annotated[bool | None, about("tell each token's probability")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=BEST)] | None,
        about("so many of the most probable tokens beside each one"),
    ] = None


class OllamaGenerate(OllamaBase, kw_only=True):
    """`/api/generate`: a text to continue or a message to answer, in Ollama's form."""

    prompt: Annotated[str, about("the text")] = ""
    suffix: Annotated[str | None, about("the text after the answer")] = None
    system: Annotated[str | None, about("the system message")] = None
    raw: Annotated[bool, about("do not use the model's template")] = False
    images: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None,
        about("models read text alone"),
    ] = None
    template: Annotated[Literal[""] | None, about("the model's own is used")] = None
    context: Annotated[list[_Token] | None, about("tokens of an answer before")] = None


class OllamaFunction(Struct):
    """A call of Ollama's form."""

    name: str
    arguments: dict[str, Any] | None = None
    index: int | None = None


class OllamaCall(Struct):
    """A call in a message."""

    function: OllamaFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(Struct):
    """A message of Ollama's form."""

    role: str
    content: str | None = ""
    thinking: str | None = None
    images: Annotated[list[Any], Meta(max_length=0)] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChat(OllamaBase, kw_only=True):
    """`/api/chat`: a conversation to continue, in Ollama's form."""

    messages: Annotated[
        list[OllamaMessage], about("as of a chat; texts alone; none loads the model")
    ] = []
    tools: Annotated[list[FunctionTool] | None, about("functions")] = None


class OllamaEmbed(ModelRequest, kw_only=True):
    """`/api/embed` and `/api/embeddings`: texts to embed, in Ollama's form."""

    input: Annotated[str | list[str] | None, about("a text, or several")] = None
    prompt: Annotated[str | None, about("one text, of `/api/embeddings`")] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        about("as of `/v1/embeddings`"),
    ] = None
    truncate: Annotated[bool | None, about("cut what is too long; default true")] = None
    keep_alive: Annotated[Any, about("has no effect")] = None
    options: Annotated[dict[str, Any] | None, about("has no effect")] = None


class OllamaShow(ModelRequest, kw_only=True):
    """`/api/show`: a model to describe."""

    name: Annotated[str | None, about("the same as `model`")] = None
    verbose: Annotated[bool | None, about("has no effect")] = None


FORMS: Final[tuple[type[Struct], ...]] = (
    Completion, Chat, ResponsesRequest, Embeddings, Rerank, Score, Classify, Transcription,
    RealtimeEvent,
    AnthropicRequest, AnthropicCount, LlamaCompletion, Infill, Tokenize, Detokenize, Template,
    LlamaEmbedding, Pooling, TeiEmbed, TeiEmbedSparse, ModelChange, OllamaChat, OllamaGenerate,
    OllamaEmbed, OllamaShow,
)  # fmt: skip


# -- fields that are not built

#: Other names of built fields: of each the names that it may stand for; the first one that the form
#: has counts. If both names are given, the field's own counts.
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "n_predict": ("max_tokens", "max_output_tokens"),
    "max_tokens": ("n_predict", "max_output_tokens"),
    "max_completion_tokens": ("max_tokens", "n_predict"),
    "max_new_tokens": ("max_tokens", "n_predict"),
    "num_predict": ("max_tokens", "n_predict"),
    "n": ("n_cmpl",),
    "n_cmpl": ("n",),
    "logprobs": ("n_probs",),
    "repeat_penalty": ("repetition_penalty",),
    "typ_p": ("typical_p",),
    "typical": ("typical_p",),
    "nsigma": ("top_n_sigma",),
    "dry_penalty_last_n": ("dry_range",),
    "dry_sequence_breakers": ("dry_breakers",),
    "include_stop_str_in_output": ("include_stop",),
    "allowed_token_ids": ("allowed_ids",),
    "truncate_prompt_tokens": ("truncate_prompt",),
    "guided_json": ("json_schema",),
    "guided_regex": ("regex",),
    "guided_choice": ("choice",),
    "guided_grammar": ("grammar",),
    "thinking_budget_tokens": ("thinking_budget",),
    "thinking_token_budget": ("thinking_budget",),
    "reasoning_budget": ("thinking_budget",),
    "continue_final": ("continue_final_message",),
    "stop_sequences": ("stop",),
    "queries": ("text_1",),
    "data_1": ("text_1",),
    "documents": ("text_2",),
    "items": ("text_2",),
    "data_2": ("text_2",),
}


class Other(NamedTuple):
    """A field that is not built.

    Attributes:
        names: the field, and others for which the same holds.
        why: why it is harmless, or what is done instead; shown in documentation and refusals.
        neutral: values that ask for nothing, beside null. None: all values do.
    """

    names: tuple[str, ...]
    why: str
    neutral: tuple[object, ...] | None = ()

    @property
    def state(self) -> Literal["harmless", "refused"]:
        """Whether the field is harmless or refused."""
        return "harmless" if self.neutral is None else "refused"


OTHERS: Final = (
    Other(
        ("safety_identifier", "metadata", "store", "request_id", "client_metadata"),
        "for the operator's records",
        None,
    ),
    Other(
        (
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "cache_prompt",
            "prediction",
            "id_slot",
            "slot_id",
            "n_cache_reuse",
            "cache_control",
            "inference_geo",
            "t_max_prompt_ms",
            "keep_alive",
            "cache_salt",
        ),
        "changes when an answer comes, not what it is",
        None,
    ),
    Other(
        ("return_progress", "sse_ping_interval", "timings_per_token", "detokenize"),
        "concerns what a stream tells beside the answer",
        None,
    ),
    Other(
        ("n_keep", "n_discard"), "an answer ends when the context is full: nothing is moved", None
    ),
    Other(("min_keep", "repeat_last_n"), "samplers keep a token, and penalties see all", None),
    Other(
        ("context_management", "max_tool_calls", "betas", "mcp_servers", "container"),
        "tools and contexts are in the client's hands",
        None,
    ),
    Other(("echo",), "this answer does not repeat the prompt", (False,)),
    Other(("suffix",), "only completions fill a gap", ("",)),
    Other(("functions",), "its newer name is tools", ([],)),
    Other(("function_call",), "its newer name is tool_choice", ("none", "auto")),
    Other(("tools", "documents"), "this route has none", ([],)),
    Other(("tool_choice",), "this route has no tools", ("none", "auto")),
    Other(("parallel_tool_calls",), "this route has no tools", (True, False)),
    Other(("response_format",), "answers of this route are free text", ({"type": "text"},)),
    Other(("rank_fields",), "documents are ranked by their field text", (["text"],)),
    Other(("max_chunks_per_doc",), "documents are not cut into chunks, but ranked whole", (1,)),
    Other(
        ("truncation", "truncate", "truncation_direction"),
        "texts that are too long are refused, and not cut",
        (False, "NONE", "Right", "right"),
    ),
    Other(
        ("input_type", "task", "late_chunking", "embedding_type", "embedding_types"),
        "vectors are those of the model as it is",
        (False, "float", ["float"]),
    ),
    Other(("logits_processors",), "there is no such thing here", ([], {})),
    Other(("modalities",), "answers are text", (["text"],)),
    Other(
        ("audio", "web_search_options"),
        "the model writes text, and neither speaks nor searches",
        (),
    ),
    Other(("reasoning_effort",), "only chats have it", ("none",)),
    Other(("verbosity",), "models have no such setting here", ("medium",)),
    Other(
        ("reasoning_format",),
        "thoughts are told apart where the template says how",
        ("auto", "deepseek"),
    ),
    Other(("chat_template",), "the chat template of the model file is used", ("",)),
    Other(("template",), "the chat template of the model file is used", ("",)),
    Other(
        ("add_generation_prompt",),
        "the answer begins a message of the assistant, or continues it",
        (True, False),
    ),
    Other(("use_beam_search", "early_stopping"), "only speech has beam search", (False,)),
    Other(("length_penalty",), "only speech has beam search", (1,)),
    Other(
        ("add_special_tokens",),
        "the special tokens that the model needs are always added",
        (True, False),
    ),
    Other(
        ("guided_whitespace_pattern", "structural_tag", "logprob_token_ids"),
        "there is no such thing here",
    ),
    Other(
        (
            "guided_decoding_backend",
            "guided_decoding_disable_fallback",
            "spaces_between_special_tokens",
        ),
        "changes how an answer is made, not what it is",
        None,
    ),
    Other(("prompt_logprobs",), "echo with logprobs gives those of a prompt", (0,)),
    Other(("n_probs",), "its name here is top_logprobs", (0,)),
    Other(("post_sampling_probs",), "probabilities are those of the model", (False,)),
    Other(("tfs_z",), "there is no such sampler here", (1,)),
    Other(("adaptive_target", "adaptive_decay"), "there is no such sampler here", (-1, 0.9)),
    Other(("lora", "loras"), "a request names its adapter in `adapter` or in `model`", ([],)),
    Other(("multimodal_data", "images", "image_data"), "the model reads text alone", ([],)),
    Other(("best_of",), "all answers that are made are returned", (1,)),
    Other(("conversation",), "the service keeps answers, and no conversations", ()),
)

_OPENAPI_HOOK: Final = "#/components/schemas/{name}"


def components() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The JSON schemas of all forms, and the components that they refer to."""
    found, parts = msgspec.json.schema_components(
        FORMS, ref_template=_OPENAPI_HOOK, schema_hook=_raw
    )
    return list(found), parts


def _raw(kind: type) -> dict[str, Any]:
    if kind is Raw:
        return {}
    raise NotImplementedError(kind)
