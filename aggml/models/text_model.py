"""TextModel: a model that continues text: logits, generation, vectors.

Here: the public object, whose calls are requests to its engine. Not here: loading (loading.py), the
tokens of one answer (token_stream.py), steps and requests (engine/), the tokenizers (tokenizers/).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from aggml import InvalidArgument, Unsupported
from aggml.models.adapters.stacks import NO_ADAPTER, choice_of
from aggml.models.arguments import (
    flag,
    integer,
    one_text,
    prompt_of,
    sequences_of,
    show,
    text_list,
    token_ids,
    urgency_of,
)  # fmt: skip
from aggml.models.chat.answers import answer_messages, stream_answer
from aggml.models.chat.template import ChatTemplate
from aggml.models.chat.thoughts import thoughts_of
from aggml.models.chat.tools import format_of
from aggml.models.engine.constraints import Grammars
from aggml.models.engine.draft_model import DraftModel
from aggml.models.engine.options import options_of
from aggml.models.engine.prediction_head import PredictionHead
from aggml.models.engine.requests import TextRequest, caller
from aggml.models.engine.speculation import LookupDrafter
from aggml.models.errors import ModelError, TooLongError
from aggml.models.lifetime import closed_error
from aggml.models.memory import measure
from aggml.models.model import LONG_TEXT, Model
from aggml.models.token_stream import PromptToken, TokenStream
from aggml.models.vision import (
    PicturePrompt,
    SeenPrompt,
    mixed_prompt,
    picture_of,
    place_pictures,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aggml.models.adapters.stacks import AdapterChoice, AdapterNames, Adapters
    from aggml.models.chat.answers import ChatStream
    from aggml.models.chat.messages import ChatMessage
    from aggml.models.chat.thoughts import Thoughts
    from aggml.models.chat.tools import ToolFormat
    from aggml.models.decoder.decoder import F32
    from aggml.models.engine.constraints import Constraint, Thinking
    from aggml.models.engine.grammars import Grammar
    from aggml.models.engine.interface import TextEngine
    from aggml.models.engine.options import RequestOptions
    from aggml.models.engine.requests import PlacedPicture, Result
    from aggml.models.engine.speculation import Speculation
    from aggml.models.memory import Memory
    from aggml.models.model import Closing, Mixed, Pixels, TokenIds
    from aggml.models.rank_head import RankHead
    from aggml.models.tokenizers import Vocabulary
    from aggml.models.vision import PictureEncoder

__all__ = ["TextModel"]


class TextModel(Model):
    """A model that continues text: `load` returns it for such an architecture.

    ``async with aggml.models.load("model.gguf") as model: ...``

    All calls of all tasks share the steps of one engine: eight tasks that generate at a time read
    the weights once for each step, not eight times.

    Attributes:
        architecture: as the file names it.
        tokenizer: text to token ids and back: ``encode``, ``decode``.
        ctx: positions that a sequence may have, prompt and answer together.
        slots: sequences at a time; further requests wait (docs/engine.md).
        engine: computes the requests.
        prompts, prompt: of the folder, as of `Model`.
        adapters: the names of the adapters that calls can choose.
        sees: whether it takes pictures among texts: `load` was given a mmproj file.
        asked_ctx: the ``ctx`` that `load` was given, before it was rounded up; None: as ``ctx``.
    """

    asked_ctx: int | None = None

    def __init__(
        self,
        engine: TextEngine,
        tokenizer: Vocabulary | None,
        *,
        owned: Closing | None = None,
        template: Mapping[str, str] | None = None,
        head: RankHead | None = None,
        prompts: Mapping[str, str] | None = None,
        prompt: str | None = None,
        tool_format: ToolFormat | None = None,
        speculation: Speculation | None = None,
        pictures: PictureEncoder | None = None,
    ) -> None:
        decoder = engine.decoder
        self.architecture: str = decoder.model.architecture
        self.ctx: int = decoder.ctx
        self.slots: int = engine.slots
        super().__init__(decoder, tokenizer, owned, prompts, prompt)
        self.engine: TextEngine = engine
        self._decoder = decoder
        self._adapters: Adapters | None = getattr(decoder, "adapters", None)
        choices = () if self._adapters is None else self._adapters.choices
        self.adapters: tuple[str, ...] = tuple(choices)
        self._template_source = template
        self._head = head
        self._template: ChatTemplate | None = None
        self._grammars: Grammars | None = None
        self._asked_form = tool_format
        self._speculation = speculation  # its draft model is closed with this one
        self._pictures = pictures

    @property
    def sees(self) -> bool:
        """Whether it takes pictures among texts."""
        return self._pictures is not None

    @property
    def template(self) -> ChatTemplate:
        """The chat template, from messages to text: ``model.template.render(messages)``.

        Raises:
            ModelError: the template cannot be read; jinja2 is not installed; no vocabulary.
        """
        if self._template is None:
            words = self.tokenizer
            names = {"bos_token": words.bos, "eos_token": words.eos}
            tokens = {k: "" if x is None else words.pieces[x] for k, x in names.items()}
            self._template = ChatTemplate(self._template_source, tokens)
        return self._template

    @property
    def width(self) -> int:
        """Elements of a vector of `embed`."""
        width: int = self._decoder.model.width
        return width

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        size: int = self._decoder.vocabulary
        return size

    @property
    def memory(self) -> Memory:
        """`Model.memory`; a draft model and what turns pictures into embeddings are part of it."""
        self._check_open("memory")
        drafter = None if self._speculation is None else self._speculation.drafter
        more = [drafter.decoder] if isinstance(drafter, (DraftModel, PredictionHead)) else []
        found = measure(self._computer, *more)
        return found if self._pictures is None else found + measure(self._pictures)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.engine.active} of {self.slots} slots"
        rounded = "" if self.asked_ctx in (None, self.ctx) else f" ({self.asked_ctx} rounded up)"
        return f"<TextModel {self.architecture}, ctx {self.ctx}{rounded}, {state}>"

    async def logits(self, ids: TokenIds | Mixed, *, adapter: AdapterNames = None) -> F32:
        """The logits after each token of a sequence.

        Args:
            ids: token ids, at least one, at most ``ctx``; or a list of texts and pictures, as
                `generate` takes it.
            adapter: the name of one of ``adapters``, which changes the model for this call, or the
                names of several with their scales, ``{"poems": 0.5, "law": 1.0}``; None:
                none does.

        Returns:
            float32 (len(ids), vocabulary). A picture has as many rows as positions, those of the
            tokens around it included.

        Raises:
            InvalidArgument: no token, or an id that is not in the vocabulary; no such adapter.
            ModelError: more tokens than ``ctx``.
            Unsupported: there is a picture, and `load` was given no ``mmproj``.
            InvalidState: the model is closed.

        Cancellation: aborts the computation; the model stays usable.
        """
        self._check_open("logits")
        choice = choice_of("logits", self._adapters, adapter)
        when = _when("logits", 0, None)
        mixed = self._picture_prompt("logits", "ids", ids)
        if mixed is None:
            tokens = token_ids("logits", "ids", ids, self.vocabulary_size)
            (found,) = await self._arrays("logits", [tokens], "logits", *when, choice)
        else:
            seen = await self._look_at("logits", mixed)
            given = [seen.pictures]
            (found,) = await self._arrays("logits", [seen.ids], "logits", *when, choice, given)
        return found

    async def embed_image(self, rgb: Pixels) -> F32:
        """The embeddings of a picture, which stand in a prompt where the picture is.

        They are kept for some time, by the picture's content: the same picture is not computed
        again.

        Args:
            rgb: uint8 [height, width, 3]; or a file's bytes, or a data URL, if Pillow is installed.

        Returns:
            float32 [n, width]. Models that see a picture in pieces give the rows of all of them.

        Raises:
            InvalidArgument: another type, shape or size.
            Unsupported: `load` was given no ``mmproj``; ``rgb`` is an address.
            InvalidState: the model is closed.

        Cancellation: aborts the computation.
        """
        place = "embed_image"
        self._check_open(place)
        encoder = self._picture_encoder(place)
        picture = picture_of(place, "rgb", rgb)
        with self._open(place):
            return (await encoder.embed(picture)).rows[:, : self.width].copy()

    def _picture_encoder(self, place: str) -> PictureEncoder:
        """What turns pictures into embeddings."""
        if self._pictures is None:
            raise Unsupported(
                f"[{place}] there is a picture, but the model reads text alone: load it with "
                "mmproj=, the path of the file with its eyes"
            )
        return self._pictures

    def _picture_prompt(self, place: str, name: str, value: object) -> PicturePrompt | None:
        """A prompt with pictures; None: it has none."""
        found = mixed_prompt(place, name, value, self.vocabulary_size)
        if found is not None:
            self._picture_encoder(place)
            _ = self.tokenizer  # raises if there is none
        return found

    async def _look_at(self, place: str, prompt: PicturePrompt) -> SeenPrompt:
        """The positions of a prompt with pictures, and their embeddings."""
        encoder = self._picture_encoder(place)
        embedded = [await encoder.embed(picture) for picture in prompt.pictures]
        words = self.tokenizer

        def assemble() -> SeenPrompt:
            return place_pictures(words, prompt, embedded, whole=encoder.whole)

        return await anyio.to_thread.run_sync(assemble)

    def generate(  # type: ignore[override]  # its options by name
        self,
        prompt: str | TokenIds | Mixed,
        *,
        max_tokens: int = 24,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | Iterable[str] = (),
        stop_ids: Sequence[int] | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        post_sampling_probs: bool = False,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        schema: Mapping[str, Any] | str | bool | None = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        grammar: str | None = None,
        typical_p: float = 1.0,
        top_n_sigma: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_range: int | None = None,
        dry_breakers: Sequence[str] | None = None,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        samplers: Sequence[str] | None = None,
        adapter: AdapterNames = None,
        prompt_logprobs: int | None = None,
        truncate_prompt: int | None = None,
        include_stop: bool = False,
        show_special: bool = False,
        allowed_ids: Sequence[int] | None = None,
        bad_words: Sequence[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        _continue: Sequence[int] = (),
        _thinking: Thinking | None = None,
        _shown: frozenset[int] = frozenset(),
        _grammar: Grammar | None = None,
        _place: str = "generate",
    ) -> TokenStream:
        """Continue a prompt, token by token: ``async for token in model.generate(...)``.

        Leaving the loop early, by ``break`` or an exception, ends the generation.

        Args:
            prompt: text, to which the tokens that begin and end a text are added as the model
                expects; or token ids, which are taken as they are; or a list of texts and
                pictures, ``["What is this?", rgb]``, if `load` was given ``mmproj``. A picture is
                uint8 [height, width, 3], or the bytes of a file.
            max_tokens: the most tokens to generate; a full context ends the generation, too.
            temperature: 0 takes the best token, among equal ones the first.
            top_k: draw among so many of the best tokens; 0: among all.
            top_p: draw among the best tokens whose probabilities add up to this.
            min_p: draw among tokens whose probability is at least this times that of the best.
            seed: of the draws; None: a different seed each time. The tokens of a seed do not depend
                on what else the model computes.
            stop: a text, or several, before which the answer ends. They may be divided among
                tokens.
            stop_ids: tokens that end the text and are not yielded; None: those that the file names.
            presence_penalty: subtracted from the logits of tokens that the answer has.
            frequency_penalty: the same, for each time that the answer has the token.
            repetition_penalty: divides the logits of tokens that prompt or answer have; 1: none.
            logit_bias: ids of tokens, each with a number that is added to its logit.
            logprobs: give each token its ``logprob``, and in ``top`` so many of the most probable
                tokens in its place, at most 64.
            post_sampling_probs: these probabilities are those with which tokens are drawn, after
                penalties, temperature and all other steps; tokens that cannot be drawn have none.
            min_tokens: while the answer has fewer tokens, none that ends it is chosen, and stop
                texts do not count.
            ignore_eos: do not end at the tokens that the file names.
            priority: greater ones come first; they preempt smaller ones, which go on later with
                the same tokens.
            deadline: seconds from now until the last token. A request that is predicted to miss it
                is refused at once.
            schema: a JSON schema, or its text: the answer is JSON that it allows. At most one of
                ``schema``, ``regex``, ``choices``, ``grammar``; each needs ``aggml[answers]``.
            regex: the whole answer matches this regular expression.
            choices: the answer is one of these texts.
            grammar: the answer is a sentence of this grammar, in llama.cpp's notation (GBNF) or in
                that of Lark, whichever its text is.
            typical_p: draw among the tokens whose surprise is nearest to what is expected, and
                whose probabilities add up to this.
            top_n_sigma: draw among tokens whose logit is at most so many standard deviations below
                the best one; 0: among all.
            xtc_probability: how often all tokens above ``xtc_threshold`` but the least probable of
                them are left out.
            xtc_threshold: see ``xtc_probability``; above 0.5 it changes nothing.
            dry_multiplier: the penalty for a token with which a text of ``dry_allowed_length``
                tokens would come again, times ``dry_base`` for each token more; 0: none.
            dry_base: see ``dry_multiplier``.
            dry_allowed_length: see ``dry_multiplier``.
            dry_range: how many last tokens are looked at for repetitions; None: all.
            dry_breakers: texts over which no repetition reaches; None: line feed, ``:``, ``"``
                and ``*``.
            dynatemp_range: the temperature is within ``temperature`` plus and minus this, the more
                the less certain the next token is.
            dynatemp_exponent: of that.
            mirostat: 1 or 2: keep the surprise of tokens near ``mirostat_tau``, instead of other
                ways to choose among which tokens to draw; 0: do not.
            mirostat_tau: see ``mirostat``.
            mirostat_eta: how fast that adapts.
            samplers: the steps between logits and draw, in order: "penalties", "dry",
                "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"; those
                that are not named are not taken. None: all of them in this order.
            adapter: the name of one of ``adapters``, which changes the model for this call, or the
                names of several with their scales, ``{"poems": 0.5, "law": 1.0}``; None:
                none does.
            prompt_logprobs: tell of each token of the prompt how probable it was, with so many of
                the most probable ones in its place, in the stream's ``prompt_logprobs``. The prompt
                is computed once more for that.
            truncate_prompt: of a longer prompt the last so many tokens are taken.
            include_stop: the text of ``stop`` that ends the answer is part of it.
            show_special: the names of control tokens are part of the text.
            allowed_ids: the answer has no other tokens than these; if none of ``stop_ids`` is among
                them, nothing but ``max_tokens`` and ``stop`` ends it.
            bad_words: texts that the answer does not have, also not within a longer word.
            progress: is called after each step with the tokens of the prompt that are computed, and
                with all of them: first with those that were known before. It runs between steps,
                so it must be quick; its error ends the answer, as the cause of an EngineError.

        Returns:
            An asynchronous iterator: each token as soon as it is known. Why the text ended is in
            its ``finish_reason``, and in that of the last token.

        Raises:
            InvalidArgument: an argument of another type or out of its range; an empty prompt, an id
                that is not in the vocabulary. An argument raises here, the empty text by the first
                token, a grammar that needs too much memory, or never ends, by any token.
            ModelError: text without a vocabulary.
            Unsupported: there is a picture, and `load` was given no ``mmproj``.
            TooLongError: by the first token: the prompt is longer than ``ctx``, or needs more
                memory than the model has. It is a ModelError.
            FullError: by the first token: too many requests wait.
            DeadlineError: by any token: the deadline cannot be met, or has passed.
            EngineError: by any token: all logits are NaN or -inf; a step has failed.
            InvalidState: the model is closed.

        Cancellation, and closing the generator: ends the request; its step is aborted if nobody
        else needs it.
        """
        place = _place
        self._check_open(place)
        vocabulary = self.vocabulary_size
        given: str | list[int] | PicturePrompt | SeenPrompt | None
        if isinstance(prompt, SeenPrompt):
            given, is_empty = prompt, not prompt.ids
        else:
            given = self._picture_prompt(place, "prompt", prompt)
            given = prompt_of(place, prompt, vocabulary) if given is None else given
            is_empty = not given
        if isinstance(given, str):
            _ = self.tokenizer  # raises if there is none
        elif is_empty:
            raise InvalidArgument(f"[{place}] prompt is empty, there must be at least one token")
        choice = choice_of(place, self._adapters, adapter)
        options = options_of(
            place, vocabulary, self._ends(), self._suppressed_tokens(),
            max_tokens=max_tokens, temperature=temperature,
            top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop, stop_ids=stop_ids,
            presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty, logit_bias=logit_bias, logprobs=logprobs,
            post_sampling_probs=post_sampling_probs, min_tokens=min_tokens,
            ignore_eos=ignore_eos, priority=priority, deadline=deadline,
            schema=schema, regex=regex, choices=choices, grammar=grammar, typical_p=typical_p,
            top_n_sigma=top_n_sigma, xtc_probability=xtc_probability, xtc_threshold=xtc_threshold,
            dry_multiplier=dry_multiplier, dry_base=dry_base,
            dry_allowed_length=dry_allowed_length, dry_range=dry_range, dry_breakers=dry_breakers,
            dynatemp_range=dynatemp_range, dynatemp_exponent=dynatemp_exponent, mirostat=mirostat,
            mirostat_tau=mirostat_tau, mirostat_eta=mirostat_eta, samplers=samplers,
            prompt_logprobs=prompt_logprobs, truncate_prompt=truncate_prompt,
            include_stop=include_stop, allowed_ids=allowed_ids, bad_words=bad_words,
        )  # fmt: skip
        if options.names_tokens:
            _ = self.tokenizer  # raises if there is none
        if flag(place, "show_special", show_special):
            words = self.tokenizer
            named_ids = (words.ids.get(name) for name in words.control_names())
            _shown |= frozenset(x for x in named_ids if x is not None) - options.ends
        if choice is not NO_ADAPTER:
            options = replace(options, adapter=choice)
        if progress is not None:
            if not callable(progress):
                raise InvalidArgument(
                    f"[{place}] progress is {show(progress)}, expected a function"
                )
            options = replace(options, progress=progress)
        if _grammar is not None:
            options = replace(options, grammar=_grammar)
        if options.grammar is not None:
            self._known_grammars.check(place)
        if options.stop:
            # A control token adds no text, in which a stop text could be found.
            named = (self.tokenizer.special_token(stop) for stop in options.stop)
            ends = options.ends | {token for token in named if token is not None}
            options = replace(options, ends=ends)
        bytes_of: Callable[[int], bytes] | None = None
        if _shown:
            words = self.tokenizer
            names = {token: words.pieces[token].encode() for token in _shown}

            def spell(token: int) -> bytes:
                return names.get(token) or words.bytes_of(token)

            bytes_of = spell

        return TokenStream(self, given, options, list(_continue), _thinking, bytes_of)

    async def _prompt_logprobs(
        self, seen: SeenPrompt, options: RequestOptions
    ) -> list[PromptToken]:
        """How probable the tokens of a prompt are; the pieces are read while it is computed."""
        ids = seen.ids
        request = TextRequest(
            list(ids), 1, result="logits", priority=options.priority, caller=caller.get(),
            deadline=options.deadline, adapter=options.adapter, pictures=seen.pictures,
            tells=options.prompt_logprobs,
        )  # fmt: skip
        engine = self.engine
        try:
            engine.submit(request)
            await engine.next(request)
        finally:
            engine.cancel(request)
        pieces = request.told

        def collect() -> list[PromptToken]:
            reports = [x for piece in pieces for x in piece.result()]
            first = PromptToken(ids[0])
            rest = zip(ids[1:], reports, strict=True)
            return [first, *(PromptToken(x, y.logprob, y.best, y.rank) for x, y in rest)]

        return await anyio.to_thread.run_sync(collect, abandon_on_cancel=True)

    @property
    def tool_format(self) -> str | None:
        """How the model writes calls of functions, by its template; None: it is not known."""
        form = self._tool_form
        return None if form is None else form.name

    @property
    def think_format(self) -> str | None:
        """How the model shows its thoughts, by its template; None: it is not known to think."""
        thoughts = self._thoughts
        return None if thoughts is None else thoughts.name

    @property
    def _tool_form(self) -> ToolFormat | None:
        if self._asked_form is not None:
            return self._asked_form
        return format_of(self.template.whole_source)

    @property
    def _thoughts(self) -> Thoughts | None:
        return thoughts_of(self.template.whole_source)

    async def _compile(self, place: str, named: Sequence[tuple[str, Grammar]]) -> None:
        """Compile grammars, so that their errors name the arguments they come from."""
        grammars = self._known_grammars

        def compile_all() -> None:
            for name, grammar in named:
                grammars.compile(place, name, grammar)

        await anyio.to_thread.run_sync(compile_all, abandon_on_cancel=True)

    @property
    def _known_grammars(self) -> Grammars:
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.vocabulary_size)
        return self._grammars

    async def _constrain(
        self,
        options: RequestOptions,
        thinking: Thinking | None,
        bytes_of: Callable[[int], bytes],
    ) -> Constraint:
        """What restricts an answer; compiling a grammar may take seconds, so it is in a thread."""
        grammars, grammar = self._known_grammars, options.grammar
        name = "" if grammar is None else grammar.name

        def constrain() -> Constraint:
            named = None
            if options.names_tokens:
                named = grammars.named_tokens(options.allowed, options.bad_words)
            return grammars.constrain(
                "generate", name, grammar, options.ends, thinking, bytes_of, named
            )

        return await anyio.to_thread.run_sync(constrain, abandon_on_cancel=True)

    def check(self, streams: Iterable[TokenStream]) -> None:
        """Raise now what the first tokens of these streams would raise for lack of room or time.

        Args:
            streams: of `generate`, whose first tokens nobody has waited for.

        Raises:
            TooLongError, FullError, DeadlineError: as `generate`.
        """
        self._check_open("check")
        # Those with pictures that were not looked at yet are checked when they are queued.
        known = [(x, x.ids(self.tokenizer)) for x in streams]
        requests = [x.prepare(ids) for x, ids in known if ids is not None]
        self.engine.check([x for x in requests if x is not None])

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        response_format: Mapping[str, Any] | None = None,
        think: bool | int | str | None = None,
        template_args: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        continue_final: bool = False,
        parallel_tool_calls: bool = True,
        **options: Any,  # noqa: ANN401 those of `generate`
    ) -> ChatMessage:
        """Answer a conversation.

        ``answer = await model.chat([{"role": "user", "content": "What is a quark?"}])``

        The text of a message stays text: names of control tokens in it end no message. A later
        conversation that begins with the same messages computes only what is new.

        Args:
            messages: each with its ``role`` ("system", "developer", "user", "assistant", "tool"),
                its ``content`` (a text, or a list of parts {"type": "text", "text": ...}) and
                perhaps a ``name``; or an answer of an earlier call.
            tools: functions that the model may call: {"type": "function", "function": {"name",
                "description", "parameters" (a JSON schema)}}, or the inner dict alone.
            tool_choice: "auto", "none", "required" (at least one call), or the name of the function
                that is to be called, also as {"type": "function", "function": {"name": ...}}. Or
                {"type": "allowed_tools", "mode": "auto" or "required", "tools": [{"name": ...}]}:
                the model is told of all functions, and may call these.
            response_format: {"type": "json_object"}; {"type": "json_schema", "json_schema":
                {"schema": ...}}; or a JSON schema: the content is JSON of that kind.
            think: whether the model thinks before it answers, if it can; "low", "medium" or "high":
                how much; a number: after so many tokens its thinking is ended. None: as the
                template does.
            template_args: further names for the file's template, as {"enable_thinking": False}.
            max_tokens: the most tokens of the answer; None: 1024, or as many as the context has
                room for.
            continue_final: continue the last message, which is the assistant's; the answer is what
                follows it.
            parallel_tool_calls: whether there may be several calls in one answer.
            options: those of `generate`, with the same defaults.

        Returns:
            The message, whose ``content`` is the answer.

        Raises:
            InvalidArgument: an argument of another type or out of its range; a message is named by
                its place, as ``messages[3].content``.
            ModelError: no vocabulary; the template cannot be read, or refuses the conversation.
            TooLongError, FullError, DeadlineError, EngineError, InvalidState: as `generate`.

        Cancellation: ends the request.
        """
        self._check_open("chat")
        return await answer_messages(
            stream_answer(
                self, "chat", messages, tools=tools, tool_choice=tool_choice,
                response_format=response_format, think=think, template_args=template_args,
                max_tokens=max_tokens, continue_final=continue_final,
                parallel_tool_calls=parallel_tool_calls, **options,
            )
        )  # fmt: skip

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        response_format: Mapping[str, Any] | None = None,
        think: bool | int | str | None = None,
        template_args: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        continue_final: bool = False,
        parallel_tool_calls: bool = True,
        **options: Any,  # noqa: ANN401 those of `generate`
    ) -> ChatStream:
        """Answer a conversation, piece by piece: ``async for delta in model.chat_stream(...)``.

        Leaving the loop early, by ``break`` or an exception, ends the answer.

        Args:
            messages: as of `chat`.
            tools: as of `chat`.
            tool_choice: as of `chat`.
            response_format: as of `chat`.
            think: as of `chat`.
            template_args: as of `chat`.
            max_tokens: as of `chat`.
            continue_final: as of `chat`.
            parallel_tool_calls: as of `chat`.
            options: those of `generate`.

        Returns:
            An asynchronous iterator: the ``content`` of each piece follows that of the one before.
            The last piece has the ``finish_reason``; the iterator then has the ``usage``.

        Raises:
            InvalidArgument: as `chat`, here and not by the first piece.
            ModelError: by the first piece: no vocabulary; the template cannot be read, or refuses
                the conversation.
            TooLongError, FullError, DeadlineError, EngineError: by a piece, as `generate`.
            InvalidState: the model is closed.

        Cancellation: ends the request.
        """
        self._check_open("chat_stream")
        return stream_answer(
            self, "chat_stream", messages, tools=tools, tool_choice=tool_choice,
            response_format=response_format, think=think, template_args=template_args,
            max_tokens=max_tokens, continue_final=continue_final,
            parallel_tool_calls=parallel_tool_calls, **options,
        )  # fmt: skip

    async def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """A vector for each text.

        It is made of hidden states, the normalised outputs of the last layer, as the file says in
        its ``pooling_type``: their mean over all tokens, or that of the first or of the last token.
        If the file says nothing it is the mean. Texts of all tasks are computed together.

        Args:
            texts: each of them must have at least one token.
            dimensions: keep only the first so many elements, if the model was trained for that.
            normalize: whether vectors have length 1; None: they do.
            priority: as of `generate`.
            deadline: seconds from now, in which all vectors are needed.
            prompt: the name of one of ``prompts``, which is put before each text; None: the one
                that the folder names as its default, if any.
            adapter: the name of one of ``adapters``, which changes the model for this call, or the
                names of several with their scales, ``{"poems": 0.5, "law": 1.0}``; None:
                none does.

        Returns:
            float32 (len(texts), dimensions or width).

        Raises:
            InvalidArgument: ``texts`` is no list of texts; another argument out of its range; there
                is no such prompt, or no such adapter.
            ModelError: no vocabulary; a text longer than ``ctx``.
            FullError: too many requests wait.
            DeadlineError: the deadline cannot be met, or has passed.
            Unsupported: the file's ``pooling_type`` is 4, scores of a reranker.
            InvalidState: the model is closed.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("embed")
        wanted = self._form("embed", dimensions, normalize)
        choice = choice_of("embed", self._adapters, adapter)
        when = _when("embed", priority, deadline)
        given = self._put_prompts("embed", text_list("embed", "texts", texts), prompt)
        return await self._vectors(await self._encode_texts(given), "embed", *wanted, *when, choice)

    async def embed_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """`embed` for texts that are given as token ids.

        Args:
            sequences: token ids of each, at least one.
            dimensions: as of `embed`.
            normalize: as of `embed`.
            priority: as of `embed`.
            deadline: as of `embed`.
            adapter: as of `embed`.

        Returns:
            float32 (len(sequences), dimensions or width).

        Raises:
            InvalidArgument: ``sequences`` is no list of lists of ids in the vocabulary.
            ModelError, FullError, DeadlineError, Unsupported, InvalidState: as `embed`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("embed_ids")
        wanted = self._form("embed_ids", dimensions, normalize)
        choice = choice_of("embed_ids", self._adapters, adapter)
        when = _when("embed_ids", priority, deadline)
        ids = sequences_of("embed_ids", "sequences", sequences, self.vocabulary_size)
        return await self._vectors(ids, "embed_ids", *wanted, *when, choice)

    async def embed_multi(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        prompt: str | None = None,
        adapter: AdapterNames = None,
    ) -> list[F32]:
        """The hidden states of all tokens of each text, whatever the file's pooling.

        Args:
            texts: as of `embed`.
            normalize: whether each vector has length 1.
            priority: as of `embed`.
            deadline: as of `embed`.
            prompt: as of `embed`.
            adapter: as of `embed`.

        Returns:
            For each text float32 (tokens, width).

        Raises:
            InvalidArgument, ModelError, FullError, DeadlineError, InvalidState: as `embed`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("embed_multi")
        unit = flag("embed_multi", "normalize", normalize)
        choice = choice_of("embed_multi", self._adapters, adapter)
        when = _when("embed_multi", priority, deadline)
        given = self._put_prompts("embed_multi", text_list("embed_multi", "texts", texts), prompt)
        ids = await self._encode_texts(given)
        found = await self._arrays("embed_multi", ids, "hidden", *when, choice)
        return [_unit(x) for x in found] if unit else found

    @property
    def ranks(self) -> bool:
        """Whether the file has a rank head, so that `rerank` works."""
        return self._head is not None

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """How well each document answers the query: float32 (len(documents),), greater is better.

        The score of a model that answers "yes" or "no", as Qwen3-Reranker, is the probability of
        "yes" among the two; of other models it is the number of the rank head as it is. A document
        that has more than ``ctx`` tokens together with the query is cut.

        Args:
            query: a text.
            documents: any number of texts.
            priority: as of `embed`.
            deadline: as of `embed`.
            adapter: as of `embed`.

        Raises:
            InvalidArgument: ``query`` is no text, ``documents`` no list of texts.
            Unsupported: the file has no rank head (``cls.output.weight``).
            ModelError: no vocabulary; the query alone is longer than ``ctx``.
            FullError, DeadlineError, InvalidState: as `embed`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("rerank")
        when = _when("rerank", priority, deadline)
        choice = choice_of("rerank", self._adapters, adapter)
        asked = one_text("rerank", "query", query)
        texts = text_list("rerank", "documents", documents)
        head = self._rank_head("rerank")
        words = self.tokenizer
        if len(asked) * len(texts) + sum(map(len, texts)) <= LONG_TEXT:
            pairs = [head.encode(words, asked, text, self.ctx) for text in texts]
        else:
            pairs = await anyio.to_thread.run_sync(
                lambda: [head.encode(words, asked, text, self.ctx) for text in texts]
            )
        states = await self._arrays("rerank", pairs, "hidden", *when, choice)
        return np.array([head.score(hidden[-1]) for hidden in states], np.float32)

    def encode_pair(self, query: str, document: str, *, most: int | None = None) -> list[int]:
        """The tokens of a query and a document for `rerank_ids`.

        Args:
            query: a text.
            document: a text.
            most: the document is cut so that there are at most so many; None: however many.

        Raises:
            InvalidArgument: ``most`` is no number of tokens.
            Unsupported: the file has no rank head.
            ModelError: it has no vocabulary.
        """
        n = None if most is None else integer("encode_pair", "most", most, 1)
        return self._rank_head("encode_pair").encode(self.tokenizer, query, document, n)

    async def rerank_ids(
        self,
        pairs: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """`rerank` for pairs that are given as token ids, from `encode_pair`.

        Raises:
            InvalidArgument: a pair without tokens, an id that is not in the vocabulary.
            Unsupported, ModelError, FullError, DeadlineError, InvalidState: as `rerank`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("rerank_ids")
        when = _when("rerank_ids", priority, deadline)
        choice = choice_of("rerank_ids", self._adapters, adapter)
        head = self._rank_head("rerank_ids")
        ids = sequences_of("rerank_ids", "pairs", pairs, self.vocabulary_size)
        states = await self._arrays("rerank_ids", ids, "hidden", *when, choice)
        return np.array([head.score(hidden[-1]) for hidden in states], np.float32)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the numbers of `classify`; empty: the file has no rank head."""
        return () if self._head is None else self._head.labels

    async def classify(
        self,
        texts: Sequence[str],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """The numbers of the rank head for each text, one for each of `labels`, as they are.

        Args:
            texts: any number of texts, none longer than ``ctx`` tokens.
            priority: as of `embed`.
            deadline: as of `embed`.
            adapter: as of `embed`.

        Returns:
            float32 (len(texts), len(labels)).

        Raises:
            InvalidArgument: ``texts`` is no list of texts.
            Unsupported: the file has no rank head.
            ModelError, FullError, DeadlineError, InvalidState: as `rerank`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("classify")
        when = _when("classify", priority, deadline)
        choice = choice_of("classify", self._adapters, adapter)
        self._rank_head("classify")
        ids = await self._encode_texts(text_list("classify", "texts", texts))
        return await self._numbers("classify", ids, *when, choice)

    async def classify_ids(
        self,
        sequences: Sequence[TokenIds],
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterNames = None,
    ) -> F32:
        """`classify` for texts, or pairs from `encode_pair`, that are given as token ids.

        Raises:
            InvalidArgument: a sequence without tokens, an id that is not in the vocabulary.
            Unsupported, ModelError, FullError, DeadlineError, InvalidState: as `classify`.

        Cancellation: ends the requests; the model stays usable.
        """
        self._check_open("classify_ids")
        when = _when("classify_ids", priority, deadline)
        choice = choice_of("classify_ids", self._adapters, adapter)
        self._rank_head("classify_ids")
        ids = sequences_of("classify_ids", "sequences", sequences, self.vocabulary_size)
        return await self._numbers("classify_ids", ids, *when, choice)

    async def _numbers(
        self,
        what: str,
        ids: Sequence[Sequence[int]],
        priority: int,
        deadline: float | None,
        adapter: AdapterChoice,
    ) -> F32:
        head = self._rank_head(what)
        states = await self._arrays(what, ids, "hidden", priority, deadline, adapter)
        found = np.empty((len(states), len(head.labels)), np.float32)
        for row, hidden in zip(found, states, strict=True):
            row[:] = head.numbers(hidden[-1])
        return found

    def _rank_head(self, place: str) -> RankHead:
        if self._head is None:
            raise Unsupported(
                f"[{place}] the file has no rank head (cls.output.weight with pooling_type 4): "
                "load a reranker"
            )
        return self._head

    def _form(self, place: str, dimensions: int | None, normalize: bool | None) -> tuple[int, bool]:
        return (
            self.width if dimensions is None
            else integer(place, "dimensions", dimensions, 1, self.width),
            True if normalize is None else flag(place, "normalize", normalize),
        )  # fmt: skip

    async def _vectors(
        self,
        sequences: Sequence[Sequence[int]],
        what: str,
        dimensions: int,
        normalize: bool,
        priority: int,
        deadline: float | None,
        adapter: AdapterChoice,
    ) -> F32:
        pooling = self._decoder.model.pooling
        if pooling == "rank":
            raise Unsupported(
                f"[{what}] the file's {self.architecture}.pooling_type is 4 (rank): it gives "
                "scores, and no vectors"
            )
        found = np.empty((len(sequences), dimensions), np.float32)
        states = await self._arrays(what, sequences, "hidden", priority, deadline, adapter)
        for i, hidden in enumerate(states):
            if pooling == "mean":
                vector = hidden.mean(axis=0)
            else:
                vector = hidden[0 if pooling == "cls" else -1]
            found[i] = vector[:dimensions]
        return _unit(found) if normalize else found

    async def _arrays(
        self,
        what: str,
        sequences: Sequence[Sequence[int]],
        result: Result,
        priority: int = 0,
        deadline: float | None = None,
        adapter: AdapterChoice = NO_ADAPTER,
        pictures: Sequence[tuple[PlacedPicture, ...]] = (),
    ) -> list[F32]:
        """The logits or hidden states of all tokens of each sequence, with its pictures."""
        for ids in sequences:
            if not len(ids):
                raise InvalidArgument(f"[{what}] ids are empty, there must be at least one token")
            if len(ids) > self.ctx:
                raise TooLongError(
                    f"[{what}] {len(ids)} tokens do not fit into a context of {self.ctx}: load "
                    "with a larger ctx", what, len(ids), self.ctx,
                )  # fmt: skip
        engine = self.engine
        found: list[F32] = []
        waiting: list[TextRequest] = []
        with self._open(what):
            try:
                for i, ids in enumerate(sequences):
                    # Not all at once, so that a long list does not fill the queue.
                    if len(waiting) >= 2 * engine.slots:
                        found.append(await self._array(what, waiting[0]))
                        del waiting[0]
                    request = TextRequest(
                        list(ids), 1, result=result, priority=priority, caller=caller.get(),
                        deadline=deadline, adapter=adapter,
                        pictures=pictures[i] if pictures else (), place=what,
                    )  # fmt: skip
                    if i and engine.queued >= engine.max_waiting and waiting:
                        found += [await self._array(what, x) for x in waiting]
                        waiting.clear()
                    engine.submit(request)
                    waiting.append(request)
                while waiting:
                    found.append(await self._array(what, waiting[0]))
                    del waiting[0]
            finally:
                for request in waiting:
                    engine.cancel(request)
        return found

    async def _array(self, what: str, request: TextRequest) -> F32:
        await self.engine.next(request)
        arrays, request.arrays = request.arrays, []
        if not arrays:
            raise ModelError(f"[{what}] nothing was computed")
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    async def aclose(self) -> None:
        """`Model.aclose`; requests that are under way end with InvalidState."""
        self.engine.cut_off(closed_error("TextModel"))
        with anyio.CancelScope(shield=True):
            await self.engine.flush()
        if self._speculation is not None:
            drafter = self._speculation.drafter
            if isinstance(drafter, LookupDrafter):
                with anyio.CancelScope(shield=True):
                    await drafter.save()
            drafter.close()
        try:
            if self._pictures is not None:
                await self._pictures.aclose()
        finally:
            await super().aclose()

    async def _prepare_prompt(
        self, prompt: str | Sequence[int] | PicturePrompt | SeenPrompt
    ) -> SeenPrompt:
        if isinstance(prompt, SeenPrompt):
            return prompt
        if isinstance(prompt, PicturePrompt):
            return await self._look_at("generate", prompt)
        if not isinstance(prompt, str):
            return SeenPrompt(list(prompt), ())
        ids = (await self._encode_texts([prompt]))[0]
        if not ids:
            raise InvalidArgument("[generate] prompt is empty, there must be at least one token")
        return SeenPrompt(ids, ())

    def _ends(self) -> frozenset[int]:
        return frozenset() if self._tokenizer is None else self._tokenizer.ends

    def _suppressed_tokens(self) -> tuple[int, ...]:
        return () if self._tokenizer is None else self._tokenizer.suppressed

    def _bytes_of(self, token: int) -> bytes:
        return b"" if self._tokenizer is None else self._tokenizer.bytes_of(token)


def _when(place: str, priority: int, deadline: float | None) -> tuple[int, float | None]:
    """The arguments, checked; the deadline as `time.monotonic`."""
    priority, seconds = urgency_of(place, priority, deadline)
    return priority, None if seconds is None else time.monotonic() + seconds


def _unit(vectors: F32) -> F32:
    """Vectors of length 1."""
    found: F32 = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found
