"""How one model is built: its layers and what surrounds them, as values.

An architecture reads a file's hyperparameters into a `Description`; the graph of a step is built
from nothing else. Here: the dataclasses and the two interfaces of blocks. Not here: the blocks
themselves (blocks/), the architectures (architectures/), the graph (decoding/step.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aggml import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.cache.room import Cached, Memory, State
    from aggml.models.checkpoints.recipes import Checkpoint
    from aggml.models.encoding.description import EncoderDescription
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["Architecture", "Block", "Description", "Layer", "Mixer", "SpeechDescription"]


class Block(Protocol):
    """A part of a layer that works on each token by itself: [width, n] f32 to [width, n] f32."""

    def needs(self) -> Iterable[str]:
        """Names of the tensors without which it cannot be built, as in "ffn_up.weight"."""
        ...

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """Its nodes, for the layer ``at``."""
        ...


@runtime_checkable
class Mixer(Protocol):
    """A part of a layer in which tokens see each other, by way of caches or states."""

    def needs(self) -> Iterable[str]:
        """Names of the tensors without which it cannot be built, as in "attn_q.weight"."""
        ...

    def caches(self) -> Mapping[str, Cached | Memory | State]:
        """Its caches and states by name."""
        ...

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [any, tokens], all that needs every token of the step."""
        ...

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n], of the tokens whose results are asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and a feed-forward block, each between norms and added to what came in.

    x + after(mixer(before(x))), then the same with the feed-forward block.

    Attributes:
        mixer: attention, or what stands for it.
        feed_forward: dense or of experts; a mixer if it looks at other tokens; None: there is none.
        before_mixer, after_mixer, before_feed_forward, after_feed_forward: names of norms, as
            "attn_norm"; None: there is none.
        residual_scale: what comes out of either block is multiplied by this before it is added.
        parallel: the feed-forward block takes in what the mixer takes in, and both are added to it;
            without a norm of its own it shares the mixer's.
        cross: a second mixer between the two, with a norm of its own and added in the same way:
            attention to what lies beside the text, as audio.
        before_cross: the name of that norm.
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

    def parts(self) -> tuple[Layer, ...]:
        """Itself, or two layers of one mixer each: the second one has the feed-forward block."""
        if self.cross is None:
            return (self,)
        first = replace(self, feed_forward=None, cross=None)
        second = replace(
            self, mixer=self.cross, before_mixer=self.before_cross, after_mixer=None, cross=None
        )
        return first, second

    def caches(self) -> dict[str, Cached | Memory | State]:
        """Caches and states of all parts by name."""
        found = dict(self.mixer.caches())
        if self.cross is not None:
            found |= self.cross.caches()
        if isinstance(self.feed_forward, Mixer):
            found |= self.feed_forward.caches()
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
        return [*(f"{norm}.weight" for norm in norms if norm is not None), *parts]


@dataclass(frozen=True, slots=True)
class Description:
    """A model that continues text.

    Attributes:
        architecture: its name in the file.
        width: of what goes from layer to layer.
        context_length: positions that the model was trained for.
        eps: of all norms.
        layers: in order.
        embedding_scale: embeddings are multiplied by it.
        logit_scale: logits are multiplied by it.
        logit_soft_cap: c bounds logits by c * tanh(x / c); 0: they are not bounded.
        centred: norms of layers and of the output take the mean away first (LayerNorm), and add a
            bias where the file has one.
        embedding_norm: embeddings are normalised (``token_embd_norm``).
        position_table: embeddings of positions are added (``position_embd``).
        entire: later layers look at values of the first one, so that it has no stages.
        first: the number in the file of the first of ``layers``; not 0 in a `stage` of a model.
        embeds: whether it begins with the embeddings of tokens; if not, with what the layer before
            the first one gives.
        ends: whether it ends with logits; if not, with what its last layer gives.
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
    entire: bool = False
    first: int = 0
    embeds: bool = True
    ends: bool = True

    def stage(self, first: int, stop: int) -> Description:
        """The layers ``first`` to ``stop`` - 1 alone, with the embeddings or the logits.

        Stages that follow each other, each fed with the values of the one before, compute what the
        whole model does: so several machines share its weights.

        Raises:
            InvalidArgument: not 0 <= first < stop <= the number of layers.
            Unsupported: its layers hand on more than one value.
        """
        n = len(self.layers)
        if self.entire and not (first == 0 and stop == n):
            raise Unsupported(
                f"[stage] layers of {self.architecture} look at values of the first one: they "
                "cannot be computed apart"
            )
        if not 0 <= first < stop <= n:
            raise InvalidArgument(f"[stage] layers {first} to {stop} are not within 0 and {n}")
        return replace(
            self,
            layers=self.layers[first:stop],
            first=self.first + first,
            embeds=self.embeds and first == 0,
            ends=self.ends and stop == n,
        )

    def uses(self, name: str) -> bool:
        """Whether a tensor of the file may be of use to it: a stage leaves out the other layers."""
        if name.startswith("blk."):
            return self.first <= int(name.split(".", 2)[1]) < self.first + len(self.layers)
        if name.startswith(("token_embd", "position_embd")):
            return self.embeds or self.ends  # of tied models these are the output's weights, too
        return self.ends or not name.startswith("output")

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        names = ["token_embd.weight"] if self.embeds else []
        if self.embeds and self.embedding_norm:
            names.append("token_embd_norm.weight")
        if self.embeds and self.position_table:
            names.append("position_embd.weight")
        if self.ends:
            names.append("output_norm.weight")
        for i, layer in enumerate(self.layers, self.first):
            names += [f"blk.{i}.{part}" for part in layer.needs()]
        return names


@dataclass(frozen=True, slots=True)
class SpeechDescription:
    """A model that writes what is said in audio.

    Attributes:
        audio: the encoder; its ``context_length`` is frames of 20 ms that it hears at once.
        text: the decoder, whose layers attend to what the encoder gives.
        bands: of the mel spectrogram.
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


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a file of ``architectures/`` gives, and a program to `register_architecture`.

    Attributes:
        names: values of ``general.architecture`` that it describes.
        describe: from a file's hyperparameters to the model; raises ModelError for what it does
            not know.
        checkpoints: the folders of Hugging Face that it is read from.
    """

    names: tuple[str, ...]
    describe: Callable[[Hyperparameters], Description | EncoderDescription | SpeechDescription]
    checkpoints: tuple[Checkpoint, ...] = ()
