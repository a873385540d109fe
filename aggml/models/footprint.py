"""Footprint: the memory of a model's steps and of its packed weights, before anything is loaded.

The graphs of its largest steps are built from the tensors that the head of a file describes, laid
out and compiled for addresses that exist nowhere. Layers that are equal have equal needs, so two
of each kind are built. Here: these graphs, and their bytes. Not here: which context and how
many sequences fit (fitting.py), what a loaded model takes (memory.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import aggml
from aggml import DType, Graph, Tensor
from aggml.memory.buffer import align_up
from aggml.memory.graph_memory import place_steps
from aggml.models.decoder.batch import Part, Shape
from aggml.models.decoder.step import Builder
from aggml.models.dividing import layer_of
from aggml.models.encoder import graph as encoder_graph
from aggml.models.encoder import packing
from aggml.models.encoder_decoder import build_graph
from aggml.models.kv.caches import CHUNK, Caches
from aggml.models.kv.state_rows import Rewind
from aggml.models.speech.listening import encode_sound, rows_to_write, write_memories
from aggml.native import _native, cpu_mask
from aggml.ops.table import PACKS
from aggml.plan.lowering import compile_steps
from aggml.stream.slices import give_way

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aggml import Device
    from aggml.models.description import Description, SpeechDescription
    from aggml.models.encoder.description import EncoderDescription
    from aggml.models.encoder_decoder import EncoderDecoderDescription

__all__ = [
    "Footprint", "copies", "footprint_of", "packed_bytes", "steps_of_encoder",
    "steps_of_encoder_decoder", "steps_of_speech", "steps_of_text",
]  # fmt: skip

KEPT: Final = 4  # large graphs of each kind whose inputs and results are counted
DRAWN: Final = 64  # of so many best tokens the device draws one
BATCH: Final = 4096  # tokens that an encoder computes together
COLUMN: Final = 1 << 20  # an address; the tensors of a graph lie behind it


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of a model's steps.

    Attributes:
        scratch: bytes for results of operations: the most that a step needs.
        graphs: bytes for inputs and results of graphs that are kept.
        multiplied: names of weights by which steps multiply; those of layers without the layer, as
            in "ffn_up.weight".
    """

    scratch: int
    graphs: int
    multiplied: frozenset[str]

    def __or__(self, other: Footprint) -> Footprint:
        """That of a model that has the steps of both."""
        return Footprint(
            max(self.scratch, other.scratch),
            self.graphs + other.graphs,
            self.multiplied | other.multiplied,
        )


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leafs like these; a graph would freeze the tensors of the file."""
    return {
        name: aggml.new_tensor(t.dtype, ne=t.ne[: t.ndim], name=name) for name, t in tensors.items()
    }


def _kinds(
    layers: Sequence[object], prefix: str, first: int, tensors: Mapping[str, Tensor]
) -> tuple[list[int], dict[str, Tensor]]:
    """Two layers of each kind, and weights under the names that these have as a smaller model.

    Two, because results of a layer may lie beside those of the layer before.

    Args:
        layers: their descriptions.
        prefix: the beginning of names, such as "enc.".
        first: the number in the file of the first of ``layers``.
        tensors: of the file.
    """
    parts: dict[int, dict[str, Tensor]] = {}
    rest = {}
    for name, tensor in tensors.items():
        number = layer_of(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if number is None:
            rest[name] = tensor
        else:
            part = name.removeprefix(prefix).split(".", 2)[2]
            parts.setdefault(number, {})[part] = tensor
    seen: dict[object, int] = {}
    chosen = []
    for i, layer in enumerate(layers):
        forms = sorted((part, t.dtype, t.ne) for part, t in parts.get(first + i, {}).items())
        kind = repr(layer), tuple(forms)
        seen[kind] = seen.get(kind, 0) + 1
        # The first layer may compute values for later ones, and the last is built otherwise.
        if seen[kind] <= 2 or i + 1 == len(layers):
            chosen.append(i)
    found = dict(rest)
    for place, i in enumerate(chosen, first):
        for part, tensor in parts.get(first + i, {}).items():
            found[f"{prefix}blk.{place}.{part}"] = tensor
    return chosen, found


async def _bytes_of(graph: Graph, device: Device, known: Iterable[Tensor]) -> tuple[int, int]:
    """Scratch of a graph, and bytes of its inputs and results; ``known`` tensors count nothing."""
    layout = await give_way(place_steps(device.buffer_type, graph))
    apart = set(known)
    alignment, alloc_size = device.buffer_type.alignment, device.buffer_type.alloc_size
    size = sum(align_up(alloc_size(t), alignment) for t in layout.lasting if t not in apart)
    places: dict[Tensor, int] = {}
    at = COLUMN
    for tensor in layout.lasting:
        places[tensor] = at
        at += align_up(alloc_size(tensor), 4096)

    def locate(tensor: Tensor) -> tuple[int, bool]:
        offset = layout.scratch.get(tensor)
        return (places[tensor], False) if offset is None else (offset, True)

    # Where a result lies depends on the sizes of all others, so a smaller step may need some more.
    scratch = layout.scratch_size + layout.scratch_size // 16
    if device.buffer_type.is_host:  # kernels have scratch of their own, which the plan knows
        try:
            plan = await give_way(compile_steps(graph, locate, scratch, cpu_mask(None)))
            scratch = max(scratch, plan.arena_size)
        except aggml.Unsupported:
            pass  # `load` says so
    return scratch, size


def _find_multiplied(graphs: Iterable[Graph], weights: Mapping[str, Tensor]) -> frozenset[str]:
    """The names of weights by which the graphs multiply; see `Footprint`."""
    names = {tensor: name for name, tensor in weights.items()}
    found = set()
    for graph in graphs:
        for node in graph.nodes:
            name = names.get(node.src[0].root) if node.op in PACKS and node.src[0] else None
            if name is not None:
                found.add(_part(name))
    return frozenset(found)


def _part(name: str) -> str:
    """The name of a weight without its layer: ``enc.blk.3.ffn_up.weight`` is ``ffn_up.weight``."""
    of = name.removeprefix("enc.")
    return name if layer_of(of) is None else name[: len(name) - len(of)] + of.split(".", 2)[2]


@functools.cache
def _has_tiles() -> bool:
    """Whether the processor has matrix tiles, for which f32 and f16 are packed, too."""
    try:
        cpu_mask("amx")
    except aggml.InvalidArgument:
        return False
    return True


def packed_bytes(tensors: Mapping[str, Tensor], multiplied: Iterable[str]) -> dict[str, int]:
    """Bytes of the packed copy that kernels of the CPU may make of each weight.

    Args:
        tensors: weights by their names in the file.
        multiplied: as in `Footprint`.
    """
    parts, tiles = set(multiplied), _has_tiles()
    found = {}
    for name, t in tensors.items():
        if _part(name) in parts and (tiles or t.dtype not in (DType.F32, DType.F16)):
            size = _native.packed_size(t.dtype.value, t.ne[0], t.ne[1], t.ne[2] * t.ne[3])
            if size:
                found[name] = size
    return found


async def footprint_of(
    graphs: Sequence[Graph], weights: Mapping[str, Tensor], device: Device
) -> Footprint:
    """The footprint of graphs of which one is kept of each."""
    scratch = size = 0
    for graph in graphs:
        need, more = await _bytes_of(graph, device, weights.values())
        scratch, size = max(scratch, need), size + more
    return Footprint(scratch, size, _find_multiplied(graphs, weights))


async def steps_of_text(
    model: Description,
    tensors: Mapping[str, Tensor],
    device: Device,
    *,
    ctx: int,
    slots: int,
    cache: DType,
    ring: bool = False,
    rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
    verified: int = 0,
    tapped: bool = False,
) -> Footprint:
    """The footprint of a decoder: a step with a piece of a prompt, and one of all sequences.

    Args:
        model: the description of the model.
        tensors: of the file, by name.
        device: which computes.
        ctx: positions of each sequence.
        slots: sequences at a time.
        cache: element type of keys and values.
        ring: as for `Caches`.
        rewind: as for `Caches`.
        verified: tokens of each sequence in a step that verifies drafts; 0: none does.
        tapped: whether steps bring hidden states as well.
    """
    chosen, kept = _kinds(model.layers, "", model.first, tensors)
    reduced = replace(model, layers=tuple(model.layers[i] for i in chosen))
    weights = copies(kept)
    caches = Caches(reduced, cache, ctx, slots, ring=ring, rewind=rewind)
    builder = Builder(reduced, weights, caches, ctx)
    prompt = Part(1, min(CHUNK, ctx), 0, ctx)
    drawn = 0
    if model.ends and "token_embd.weight" in tensors:
        drawn = min(DRAWN, tensors["token_embd.weight"].ne[1])
    shapes = [Shape((prompt,), ends=1, drawn=drawn), Shape((Part(slots, 1, 0, ctx),), drawn=drawn)]
    if slots > 1:  # a piece of a prompt beside the other sequences
        shapes.append(Shape((prompt, Part(slots - 1, 1, 1, ctx)), ends=slots, drawn=drawn))
    if verified:
        history = verified if caches.states else 1
        shapes.append(Shape((Part(slots, verified, 0, ctx, history=history),), drawn=drawn))
    shapes = [replace(x, given=model.predicts, tapped=tapped) for x in shapes]
    known = [*weights.values(), *caches.all]
    scratch = graphs = 0
    built = []
    for shape in shapes:
        step = await builder.build(shape)
        built.append(step.graph)
        need, size = await _bytes_of(step.graph, device, known)
        scratch, graphs = max(scratch, need), graphs + KEPT * size
    return Footprint(scratch, graphs, _find_multiplied(built, weights))


async def steps_of_encoder(
    model: EncoderDescription, tensors: Mapping[str, Tensor], device: Device
) -> Footprint:
    """The footprint of an encoder: a batch of texts that are as long as the model takes."""
    chosen, kept = _kinds(model.layers, "", 0, tensors)
    reduced = replace(model, layers=tuple(model.layers[i] for i in chosen))
    weights = copies(kept)
    length = min(model.context_length, BATCH)
    texts = max(BATCH // length, 1)
    built, scratch, graphs = [], 0, 0
    ranks = "cls.weight" in tensors or "cls.output.weight" in tensors
    for kind in ("unit", "rank") if ranks else ("unit",):
        shape = packing.PackingShape(texts, length, 1, masked=True)
        program = await encoder_graph.build(reduced, weights, shape, kind)
        built.append(program.graph)
        need, size = await _bytes_of(program.graph, device, weights.values())
        scratch, graphs = max(scratch, need), graphs + KEPT * size
    return Footprint(scratch, graphs, _find_multiplied(built, weights))


async def steps_of_encoder_decoder(
    model: EncoderDecoderDescription, tensors: Mapping[str, Tensor], device: Device
) -> Footprint:
    """The footprint of one pair of texts that are as long as the model was trained with."""
    weights = copies(tensors)
    length = model.context_length
    graph = await build_graph(model, weights, length, length if model.decoder_layers else 0)
    return await footprint_of([graph], weights, device)


async def steps_of_speech(
    model: SpeechDescription,
    tensors: Mapping[str, Tensor],
    device: Device,
    *,
    slots: int,
    cache: DType,
) -> Footprint:
    """The footprint of a model of speech: windows that are encoded together, and decoded."""
    ctx = model.text.context_length
    text = await steps_of_text(
        model.text, tensors, device, ctx=ctx, slots=slots, cache=cache, ring=True
    )
    chosen, kept = _kinds(model.audio.layers, "enc.", 0, tensors)
    audio = replace(model.audio, layers=tuple(model.audio.layers[i] for i in chosen))
    cross, more = _kinds(model.text.layers, "", model.text.first, kept)
    layers = tuple(model.text.layers[i] for i in cross)
    reduced = replace(model, audio=audio, text=replace(model.text, layers=layers))
    weights = copies(more)
    caches = Caches(reduced.text, cache, ctx, slots, ring=True)
    mel = aggml.new_tensor(DType.F32, ne=(2 * audio.context_length, model.bands, slots), name="mel")
    at = rows_to_write(audio.context_length, slots, audio.context_length)
    x = await encode_sound(reduced, weights, mel.set_input())
    graph = Graph(*write_memories(weights, caches.layers, x, at))
    need, size = await _bytes_of(graph, device, [*weights.values(), *caches.all])
    return text | Footprint(need, size, _find_multiplied([graph], weights))
