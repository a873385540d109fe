"""How one model is built, as values: its layers, and what comes before and after them.

An architecture reads a file's hyperparameters into a `Description`; the graph of a step is built
from that alone. Here: the dataclasses and the two interfaces of blocks. Not here: the blocks
themselves (blocks/), the architectures (architectures/), the graph (decoder/step.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, cast

from aggml import InvalidArgument, Unsupported
from aggml.models.forms import (
    PLAIN_NORM,
    FormContext,
    TensorForm,
    demand,
    has_biased_norms,
    linear,
    norm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.checkpoints.recipes import Checkpoint
    from aggml.models.encoder.description import EncoderDescription
    from aggml.models.encoder_decoder import EncoderDecoderDescription
    from aggml.models.hyperparameters import Hyperparameters
    from aggml.models.kv.room import Kept

__all__ = [
    "VOCABULARY", "Architecture", "Block", "Description", "Ending", "Layer", "Mixer",
    "SpeechDescription", "Streams", "mixer_in",
]  # fmt: skip


VOCABULARY: Final = "vocabulary"  # the extent of embeddings and output that has this name
CONVOLVED: Final = 3  # frames that each convolution of a model of speech uses


class Block(Protocol):
    """A part of a layer that works on each token by itself: [width, n] f32 to [width, n] f32."""

    def needs(self) -> Iterable[str]:
        """Names of the tensors without which it cannot be built, as in "ffn_up.weight"."""
        ...

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        ...

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """The nodes of the block, for the layer ``at``."""
        ...


class Mixer(Protocol):
    """A part of a layer in which tokens see each other, through caches or recurrent states."""

    def needs(self) -> Iterable[str]:
        """Names of the tensors without which it cannot be built, as in "attn_q.weight"."""
        ...

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        ...

    def caches(self) -> Mapping[str, Kept]:
        """Descriptions of its caches and states by name."""
        ...

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [any, tokens]: the part that needs all tokens of the step."""
        ...

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n]: the rest, for the ``n`` tokens whose results are needed."""
        ...


def mixer_in(block: Block | Mixer | None) -> Mixer | None:
    """``block`` if it is a mixer; `isinstance` would take 10 us for a protocol."""
    return cast("Mixer", block) if hasattr(block, "caches") else None


class Ending(Protocol):
    """The last part of a layer, after both blocks and their residual sums."""

    def needs(self) -> Iterable[str]:
        """Names of the tensors without which it cannot be built."""
        ...

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        ...

    def build(self, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
        """[width, n] -> [width, n]; ``last`` is which tokens of the step these are, None: all."""
        ...


class Streams(Protocol):
    """Several values of each token between layers, of which each layer computes one."""

    def needs(self) -> Iterable[str]:
        """Whole names of the tensors without which it cannot be built."""
        ...

    def forms(self, width: int) -> Mapping[str, TensorForm]:
        """The forms of all tensors that it reads."""
        ...

    def begin(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """[width, n] -> [any, n]: the streams before the first layer."""
        ...

    def end(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """[any, n] -> [width, n]: one value of the streams after the last layer."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and then a feed-forward block, each with norms around it and a residual sum.

    The mixer gives x + after(mixer(before(x))); the feed-forward block continues in the same way.

    Attributes:
        mixer: attention or a recurrence.
        feed_forward: a dense net or experts; a mixer if it uses other tokens; None: there is none.
        before_mixer, after_mixer, before_feed_forward, after_feed_forward: names of norms, such as
            "attn_norm", or `PLAIN_NORM`; None: there is none.
        residual_scale: the output of each block is multiplied by it before it is added.
        parallel: both blocks take the input of the layer, and both outputs are added to it. A
            feed-forward block without a norm of its own uses the mixer's.
        cross: a second mixer between the two blocks, with its own norm and residual sum: attention
            to an input other than text, such as audio.
        before_cross: the name of the norm before ``cross``.
        ending: changes the output of the layer; None: nothing does.
        beginning: changes the input of the layer; None: nothing does.
        sum_scale: the sum of the input and the mixer's output is multiplied by it.
        bare: norms whose tensors have no ".weight" at the end of their names.
        routed_early: ``feed_forward`` is experts, which are chosen by the input of the layer.
    """

    mixer: Mixer
    feed_forward: Block | Mixer | None
    before_mixer: str | None = "attn_norm"
    after_mixer: str | None = None
    before_feed_forward: str | None = "ffn_norm"
    after_feed_forward: str | None = None
    residual_scale: float = 1.0
    parallel: bool = False
    cross: Mixer | None = None
    before_cross: str = "cross_attn_norm"
    ending: Ending | None = None
    beginning: Block | None = None
    sum_scale: float = 1.0
    bare: tuple[str, ...] = ()
    routed_early: bool = False

    def parts(self) -> tuple[Layer, ...]:
        """The layer as layers of one mixer each: two if it has ``cross``, else itself.

        The last one has the feed-forward block.
        """
        if self.cross is None:
            return (self,)
        first = replace(self, feed_forward=None, cross=None, ending=None)
        second = replace(
            self, mixer=self.cross, before_mixer=self.before_cross, after_mixer=None, cross=None,
            beginning=None,
        )  # fmt: skip
        return first, second

    def caches(self) -> dict[str, Kept]:
        """Descriptions of the caches and states of all parts by name."""
        found = dict(self.mixer.caches())
        if self.cross is not None:
            found |= self.cross.caches()
        mixer = mixer_in(self.feed_forward)
        if mixer is not None:
            found |= mixer.caches()
        return found

    def needs(self) -> list[str]:
        """Names of the tensors without which it cannot be built, as in "attn_q.weight"."""
        norms = [self.before_mixer, self.after_mixer]
        parts = [*self.mixer.needs()]
        if self.feed_forward is not None:
            norms += [self.before_feed_forward, self.after_feed_forward]
            parts += self.feed_forward.needs()
        if self.cross is not None:
            norms.append(self.before_cross)
            parts += self.cross.needs()
        for end in (self.beginning, self.ending):
            if end is not None:
                parts += end.needs()
        named = [norm for norm in norms if norm is not None and norm != PLAIN_NORM]
        return [*(self._tensor(norm) for norm in named), *parts]

    def _tensor(self, norm: str) -> str:
        return norm if norm in self.bare else f"{norm}.weight"

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        found = dict(self.mixer.forms(of))
        norms = [self.before_mixer, self.after_mixer]
        if self.feed_forward is not None:
            found |= self.feed_forward.forms(of)
            norms += [self.before_feed_forward, self.after_feed_forward]
        if self.cross is not None:
            found |= self.cross.forms(of)
            norms.append(self.before_cross)
        for end in (self.beginning, self.ending):
            if end is not None:
                found |= end.forms(of)
        for name in norms:
            if name is not None:
                form = norm(name, of.width, centred=of.centred)
                found |= {name: form[f"{name}.weight"]} if name in self.bare else form
        return found


@dataclass(frozen=True, slots=True)
class Description:
    """A model that continues text.

    Attributes:
        architecture: its name in the file.
        width: elements of a token's vector between layers.
        context_length: positions that the model was trained for.
        eps: of all norms.
        layers: in order.
        embedding_scale: embeddings are multiplied by it.
        logit_scale: logits are multiplied by it.
        logit_soft_cap: c bounds logits by c * tanh(x / c); 0: they are not bounded.
        centred: norms of layers and of the output subtract the mean first (LayerNorm), and add a
            bias if the file has one.
        embedding_norm: embeddings are normalised (``token_embd_norm``).
        position_table: embeddings of positions are added (``position_embd``).
        layer_embedding: elements of a further embedding that each token has for each layer
            (``per_layer_token_embd``); 0: there is none.
        streams: how a token has several values between layers, of which layers compute one; None:
            it has one.
        entire: later layers use values of the first one, so the model cannot be cut into stages.
        first: the number in the file of the first of ``layers``; not 0 in a later `stage`.
        embeds: whether the input is tokens; if not, it is the output of the layer before ``first``.
        ends: whether the output is logits; if not, it is the output of the last layer.
        last_norm: the name in the file of the norm before the logits, or `PLAIN_NORM`.
        deepstack: so many first layers get something more of each position of a picture, which
            follows its embedding.
        pooling: how the vector of a text is made of its tokens' hidden states: their mean, that of
            the first ("cls") or last token; "rank": the file's head gives a score, and no vector.
        predicts: whether it is the head of another model (MTP): a layer that takes a token and the
            hidden state of the one before it, and predicts the token after.
        ahead: that head of this model; None: the file has none.
    """

    architecture: str
    width: int
    context_length: int
    eps: float
    layers: tuple[Layer, ...]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float = 0.0
    centred: bool = False
    embedding_norm: bool = False
    position_table: bool = False
    layer_embedding: int = 0
    streams: Streams | None = None
    entire: bool = False
    first: int = 0
    embeds: bool = True
    ends: bool = True
    last_norm: str = "output_norm"
    deepstack: int = 0
    pooling: Literal["mean", "cls", "last", "rank"] = "mean"
    predicts: bool = False
    ahead: Description | None = None

    def stage(self, first: int, stop: int) -> Description:
        """A part of the model: the layers ``first`` to ``stop`` - 1.

        The first stage includes the embeddings, the last one the logits. Consecutive stages, each
        fed with the output of the previous one, compute the same as the whole model. So several
        machines can share its weights.

        Raises:
            InvalidArgument: not 0 <= first < stop <= the number of layers.
            Unsupported: its layers pass on more than one value.
        """
        n = len(self.layers)
        if self.entire and not (first == 0 and stop == n):
            raise Unsupported(
                f"[stage] {self.architecture} cannot be cut into stages: later layers use values "
                "that the first one computes"
            )
        if not 0 <= first < stop <= n:
            raise InvalidArgument(f"[stage] layers {first} to {stop} are not within 0 and {n}")
        return replace(
            self,
            layers=self.layers[first:stop],
            first=self.first + first,
            embeds=self.embeds and first == 0,
            ends=self.ends and stop == n,
            ahead=None,
        )

    def uses(self, name: str) -> bool:
        """Whether the model may use a tensor of the file; a stage uses its own layers only."""
        if name.startswith("blk."):
            return self.first <= int(name.split(".", 2)[1]) < self.first + len(self.layers)
        if name.startswith(("token_embd", "position_embd")):
            return self.embeds or self.ends  # tied models use the embeddings for the output, too
        return self.ends or not name.startswith("output")

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        names = ["token_embd.weight"] if self.embeds else []
        if self.embeds and self.embedding_norm:
            names.append("token_embd_norm.weight")
        if self.embeds and self.position_table:
            names.append("position_embd.weight")
        if self.layer_embedding:
            parts = ("token_embd", "model_proj", "proj_norm")
            names += [f"per_layer_{part}.weight" for part in parts]
        if self.streams is not None:
            names += self.streams.needs()
        if self.ends and self.last_norm != PLAIN_NORM:
            names.append(f"{self.last_norm}.weight")
        for i, layer in enumerate(self.layers, self.first):
            names += [f"blk.{i}.{part}" for part in layer.needs()]
        if self.predicts:
            names += [f"blk.{self.first}.nextn.{x}.weight" for x in ("eh_proj", "enorm", "hnorm")]
        return names

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included.

        Args:
            tensors: of the file, by name.
        """
        width, centred = self.width, self.centred
        found = linear("output", width, VOCABULARY)
        found["output.weight"] = replace(found["output.weight"], optional=True)
        found["token_embd.weight"] = TensorForm((width, VOCABULARY), optional=not self.embeds)
        if self.ends:
            found |= norm(self.last_norm, width, centred=centred)
        if self.embedding_norm:
            found |= norm("token_embd_norm", width, centred=centred, optional=not self.embeds)
        if has_biased_norms(tensors):
            found |= demand(found, "output_norm.bias", "token_embd_norm.bias")
        if self.position_table:
            found["position_embd.weight"] = TensorForm((width, self.context_length))
        if self.layer_embedding:
            n = self.layer_embedding * len(self.layers)
            found["per_layer_token_embd.weight"] = TensorForm((n, VOCABULARY))
            found["per_layer_model_proj.weight"] = TensorForm((width, n))
            found |= norm("per_layer_proj_norm", self.layer_embedding, centred=False)
        if self.streams is not None:
            found |= self.streams.forms(width)
        for layer in self.layers:
            rope = getattr(layer.mixer, "rope", None)
            if rope is not None:
                demanded = self.embeds and rope.stretched
                for name in (rope.factors, rope.long_factors):
                    if name is not None:
                        count = rope.factor_count or rope.dims // 2
                        found[name] = TensorForm((count,), not demanded, vector=True)
        for i, layer in enumerate(self.layers, self.first):
            prefix = f"blk.{i}."
            of = layer.forms(FormContext(width, centred, tensors, prefix))
            found |= {prefix + name: form for name, form in of.items()}
        if self.predicts:
            found |= self._forms_of_head()
        return found

    def _forms_of_head(self) -> dict[str, TensorForm]:
        """What a head that `predicts` has beside its layer; some of it may be that of its model."""
        prefix, words = f"blk.{self.first}.nextn.", TensorForm((self.width, VOCABULARY))
        found = linear(f"{prefix}eh_proj", 2 * self.width, self.width)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            optional = name == "shared_head_norm"
            found |= norm(prefix + name, self.width, centred=self.centred, optional=optional)
        for name in ("embed_tokens", "shared_head_head"):
            found[f"{prefix}{name}.weight"] = replace(words, optional=True)
        return found


@dataclass(frozen=True, slots=True)
class SpeechDescription:
    """A model that writes what is said in audio.

    Attributes:
        audio: the encoder; its ``context_length`` is the number of 20 ms frames of one window.
        text: the decoder, whose layers attend to the encoder's output.
        bands: how many the mel spectrogram has.
    """

    audio: EncoderDescription
    text: Description
    bands: int

    @property
    def architecture(self) -> str:
        """Its name in the file."""
        return self.text.architecture

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        names = ["enc.position_embd.weight", "enc.output_norm.weight"]
        names += [f"enc.conv{i}.{part}" for i in (1, 2) for part in ("weight", "bias")]
        parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
        parts += ["ffn_norm", "ffn_up", "ffn_down"]
        for i in range(len(self.audio.layers)):
            names += [f"enc.blk.{i}.{part}.weight" for part in parts]
        return [*names, *self.text.needs()]

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        width = self.audio.width
        found = {
            "enc.conv1.weight": TensorForm((CONVOLVED, self.bands, width)),
            "enc.conv2.weight": TensorForm((CONVOLVED, width, width)),
            **{f"enc.conv{i}.bias": TensorForm((width,), vector=True, flat=True) for i in (1, 2)},
            "enc.position_embd.weight": TensorForm((width, self.audio.context_length), vector=True),
            **norm("enc.output_norm", width, centred=True),
        }
        return found | self.audio.layer_forms(tensors, "enc.") | self.text.forms(tensors)


#: What an architecture may describe.
AnyDescription: TypeAlias = (
    "Description | EncoderDescription | EncoderDecoderDescription | SpeechDescription"
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture: each file of ``architectures/`` has one, programs register others.

    Attributes:
        names: the values of ``general.architecture`` for which it stands.
        describe: makes the description from a file's hyperparameters; raises ModelError for values
            that it does not support.
        checkpoints: the formats of Hugging Face folders from which it can be read.
    """

    names: tuple[str, ...]
    describe: Callable[[Hyperparameters], AnyDescription]
    checkpoints: tuple[Checkpoint, ...] = ()
