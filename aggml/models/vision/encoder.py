"""PictureEncoder: a mmproj file that turns pictures into embeddings, and a cache of these.

It computes on a stream of its own: a picture takes as long as hundreds of tokens, and texts that
run go on meanwhile. Here: loading, graphs, the cache. Not here: the kinds of files (one file of
this room each), positions in a prompt (prompt.py).
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import numpy as np

import aggml
from aggml import DType, Graph
from aggml.models.errors import ModelError
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.kv.page_files import identity_of
from aggml.models.lifetime import Lifetime
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, free_with, site_of, unplace
from aggml.models.vision.dots_ocr import DotsOcr
from aggml.models.vision.gemma3 import Gemma3Pictures
from aggml.models.vision.gemma4 import Gemma4Pictures
from aggml.models.vision.glm4v import Glm4Pictures
from aggml.models.vision.idefics3 import Idefics3
from aggml.models.vision.internvl import InternVL
from aggml.models.vision.kimi_vl import KimiVL
from aggml.models.vision.layers import TowerLayers
from aggml.models.vision.lfm2 import Lfm2Pictures
from aggml.models.vision.paddleocr import PaddleOcr
from aggml.models.vision.pixtral import Pixtral
from aggml.models.vision.projector import tower_problems
from aggml.models.vision.qwen_vl import QwenVision
from aggml.models.vision.tower import BOUNDS, MOST_TOKENS, PatchGrid
from aggml.models.weights import load_weights, open_model
from aggml.process.locks import new_lock
from aggml.stream.slot_pool import SlotPool
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from aggml import Backend, Scheduler, Tensor
    from aggml.models.description import Description
    from aggml.models.vision.given import GivenPicture
    from aggml.models.vision.projector import Projector
    from aggml.models.weights import ModelFile

    F32 = npt.NDArray[np.float32]
    U8 = npt.NDArray[np.uint8]

__all__ = [
    "KINDS", "EmbeddedPicture", "PictureEncoder", "PictureProgram", "load_pictures",
    "picture_problems", "picture_program", "read_projector",
]  # fmt: skip

#: How each kind of file is read, by ``clip.projector_type``.
KINDS: Final[Mapping[str, Callable[[Hyperparameters, Mapping[str, Tensor]], Projector]]] = {
    "dots_ocr": DotsOcr.read,
    "gemma3": Gemma3Pictures.read,
    "gemma4v": Gemma4Pictures.read,
    "glm4v": Glm4Pictures.read,
    "idefics3": Idefics3.read,
    "internvl": InternVL.read,
    "kimivl": KimiVL.read,
    "lfm2": Lfm2Pictures.read,
    "lightonocr": Pixtral.read_lighton,
    "paddleocr": PaddleOcr.read,
    "pixtral": Pixtral.read,
    "qwen2vl_merger": QwenVision.read_2,
    "qwen2.5vl_merger": QwenVision.read_2_5,
    "qwen3vl_merger": QwenVision.read_3,
}
CACHE: Final = 256 << 20  # bytes of embeddings that are kept
GRAPHS: Final = 4  # that are kept, by the size of a view


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedPicture:
    """The embeddings of a picture.

    Attributes:
        digest: of the picture and of the file that made them.
        parts: what stands in the prompt: texts, and embeddings (n, width), with further elements
            behind each for the first layers of the text model if there are such.
        tokens: of a row and of a column, where these have rotary positions; None: they do not.
    """

    digest: bytes
    parts: tuple[str | F32, ...]
    tokens: tuple[int, int] | None = None

    @property
    def rows(self) -> F32:
        """All embeddings, in the order of the prompt: (n, width)."""
        return np.concatenate([x for x in self.parts if not isinstance(x, str)])

    @property
    def nbytes(self) -> int:
        """Of the embeddings."""
        return sum(x.nbytes for x in self.parts if not isinstance(x, str))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PictureProgram:
    """The graph of a view."""

    graph: Graph
    patches: Tensor
    inputs: Mapping[str, Tensor]
    embeddings: Tensor


def picture_program(
    projector: Projector,
    weights: Mapping[str, Tensor],
    grid: PatchGrid,
    bounds: Mapping[str, float] | None = None,
) -> PictureProgram:
    """The graph of views of one size; ``bounds`` as of `TowerLayers`."""
    tower = projector.tower
    ne = 3 * tower.patch**2, grid.n
    patches = aggml.new_tensor(DType.F32, ne=ne, name="patches").set_input()
    shapes = projector.input_shapes(grid)
    if projector.order(grid) is not None:
        shapes["order"] = (grid.n,)
    inputs = {
        name: aggml.new_tensor(
            DType.F16 if name == "mask" else DType.I32, ne=shape[::-1], name=name
        ).set_input()
        for name, shape in shapes.items()
    }
    nodes = TowerLayers(tower, weights, grid, bounds)
    embeddings = projector.build(nodes, patches, inputs).set_output()
    graph = Graph(embeddings)
    used = set(graph.leafs)  # not each kind needs the order once more
    inputs = {k: x for k, x in inputs.items() if x in used}
    return PictureProgram(graph, patches, inputs, embeddings)


class PictureEncoder:
    """Pictures to embeddings; for tasks of any event loop and thread.

    Args:
        backend: of its own; it is closed with this object.
        projector: the kind of the file.
        weights: by their names in the file, placed for the backend.
        about: identifies the file.
        bounds: as of `TowerLayers`.
        cache: bytes of embeddings that are kept, by content.

    Attributes:
        projector: as given.
        lifetime: closed by `close`.
        computed: how many pictures were computed, and not found in the cache.
    """

    def __init__(
        self,
        backend: Backend,
        projector: Projector,
        weights: Mapping[str, Tensor],
        about: str,
        bounds: Mapping[str, float],
        cache: int = CACHE,
    ) -> None:
        self.projector = projector
        self._backend = backend
        self._site = site_of(backend)
        self._weights = weights
        self._about = about.encode()
        self._bounds = bounds
        self._cache = cache
        self._kept: OrderedDict[bytes, EmbeddedPicture] = OrderedDict()
        self._nbytes = 0
        self._programs: OrderedDict[PatchGrid, PictureProgram] = OrderedDict()
        self._lock = new_lock()  # for `_kept` and `_nbytes`
        self._working = SlotPool(1)  # one picture at a time, so that none is computed twice
        self.computed: int = 0
        self.lifetime: Lifetime = Lifetime(self._free)

    @property
    def width(self) -> int:
        """Elements of an embedding."""
        return self.projector.tower.out

    @property
    def whole(self) -> bool:
        """Whether the positions of a picture see each other also where they come later."""
        return self.projector.whole

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return Parts(self._site, [*self._weights.values()])

    async def embed(self, picture: GivenPicture) -> EmbeddedPicture:
        """The embeddings of a picture, from the cache if it was seen lately.

        Raises:
            InvalidArgument: its bytes are no picture, or it has too many pixels.
            ModelError: Pillow is needed and is not installed.
            InvalidState: the model is closed.

        Cancellation: aborts the computation.
        """
        digest = hashlib.blake2b(self._about + picture.digest, digest_size=32).digest()
        with self.lifetime.use("embed_image"):
            found = self._find(digest)
            if found is not None:
                await CHECKPOINT
                return found
            async with self._working.slot():
                return self._find(digest) or await self._compute(picture, digest)

    def _find(self, digest: bytes) -> EmbeddedPicture | None:
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
        return found

    async def _compute(self, picture: GivenPicture, digest: bytes) -> EmbeddedPicture:
        projector = self.projector
        views = await anyio.to_thread.run_sync(
            lambda: projector.views(picture.decode()), abandon_on_cancel=True
        )
        embedded = [await self._see(pixels) for pixels in views.pixels]
        if sum(map(len, embedded)) > MOST_TOKENS:
            raise ModelError(f"{picture.name} takes more than {MOST_TOKENS} positions")
        parts = tuple(x if isinstance(x, str) else embedded[x] for x in views.written)
        patch = projector.tower.patch
        height, width = views.pixels[0].shape[:2]
        tokens = projector.tokens(PatchGrid(width // patch, height // patch))
        found = EmbeddedPicture(digest, parts, tokens)
        self.computed += 1
        self._keep(found)
        return found

    def _keep(self, found: EmbeddedPicture) -> None:
        dropped = []  # their memory is freed without the lock
        with self._lock:
            if found.nbytes > self._cache:
                return
            self._kept[found.digest] = found
            self._nbytes += found.nbytes
            while self._nbytes > self._cache:
                dropped.append(self._kept.popitem(last=False)[1])
                self._nbytes -= dropped[-1].nbytes

    async def _see(self, pixels: U8) -> F32:
        """The embeddings of one view."""
        projector, patch = self.projector, self.projector.tower.patch
        grid = PatchGrid(pixels.shape[1] // patch, pixels.shape[0] // patch)
        program = self._programs.get(grid) or await self._build(grid)
        self._programs.move_to_end(grid)

        def arrays() -> dict[Tensor, Any]:
            patches, order = projector.tower.patches(pixels), projector.order(grid)
            more = projector.inputs(grid)
            if order is not None:
                more["order"] = order
                patches = patches[order]
            return {program.patches: patches} | {x: more[k] for k, x in program.inputs.items()}

        inputs = await anyio.to_thread.run_sync(arrays, abandon_on_cancel=True)
        made = await self._site.run(program.graph, inputs, program.embeddings)
        found: F32 = np.array(made, np.float32).reshape(-1, self.width * (1 + projector.deepstack))
        found.flags.writeable = False
        return found

    async def _build(self, grid: PatchGrid) -> PictureProgram:
        projector, weights = self.projector, self._weights
        program = await anyio.to_thread.run_sync(
            picture_program, projector, weights, grid, self._bounds
        )
        await self._site.prepare(program.graph)
        free_with(program, program.graph)
        self._programs[grid] = program
        if len(self._programs) > GRAPHS:
            self._programs.popitem(last=False)
        return program

    def close(self) -> None:
        """Free weights and graphs, as soon as no task uses them; later calls raise InvalidState."""
        self.lifetime.close()

    async def aclose(self) -> None:
        """`close`, and close the backend.

        Cancellation: takes effect after it is closed.
        """
        self.close()
        with anyio.CancelScope(shield=True):
            await self._backend.aclose()
            await self.lifetime.wait_until_freed()

    def _free(self) -> None:
        for program in self._programs.values():
            self._site.forget(program.graph)
        self._programs.clear()
        self._kept.clear()
        unplace(self._weights.values())
        self._weights = {}
        self._site = CLOSED


async def load_pictures(
    backend: Backend | Scheduler, path: Path, model: Description
) -> PictureEncoder:
    """The encoder of a mmproj file, on a backend of its own on the same device.

    Args:
        backend: of the text model; of a scheduler the first backend's device is taken.
        path: a GGUF file.
        model: the text model.

    Raises:
        ModelError: the file cannot be read, is no mmproj file, is of a kind that is not known, or
            belongs to another text model.
    """
    given = site_of(backend).backends[0]
    with await open_model(path, "mmproj file") as file:
        projector, forms = read_projector(file, path, model)
        about = await anyio.to_thread.run_sync(identity_of, path)
        own = given.device.backend(n_threads=getattr(given, "n_threads", None))
        try:
            weights = await load_weights(own, file, list(forms), None, lambda x: x in forms)
            bounds = await _read_bounds(own, weights, forms)
            return PictureEncoder(own, projector, {x: weights[x] for x in forms}, about, bounds)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await own.aclose()
            raise


async def _read_bounds(
    backend: Backend, weights: Mapping[str, Tensor], names: Iterable[str]
) -> dict[str, float]:
    """The numbers that bound what matrices take and give, by the names of their tensors.

    Raises:
        ModelError: one is NaN, or a lower one is above the upper one.
    """
    found = {x: float((await backend.get(weights[x]))[0]) for x in names if x.endswith(BOUNDS)}
    for name, value in found.items():
        most = found.get(f"{name.removesuffix('min')}max", math.inf)
        if math.isnan(value) or (name.endswith("min") and not value <= most):
            raise ModelError(f"tensor {name!r} is {value:g}, expected a bound of at most {most:g}")
    return found


def read_projector(
    file: ModelFile, path: Path, model: Description
) -> tuple[Projector, dict[str, tuple[int, ...]]]:
    """The projector of a mmproj file, and the extents of the tensors that it needs.

    Raises:
        ModelError: it is no mmproj file, is of a kind that is not known, or belongs to another text
            model.
    """
    tensors = file.tensors
    projector = _projector(file.metadata, tensors, repr(str(path)))
    if projector.tower.out != model.width or projector.deepstack != model.deepstack:
        raise ModelError(
            f"{str(path)!r} makes embeddings of {projector.tower.out} elements and for "
            f"{projector.deepstack} layers more, but the text model, {model.architecture}, has "
            f"{model.width} and {model.deepstack}: they do not belong together"
        )
    for problem in tower_problems(projector, tensors):
        raise ModelError(problem)
    return projector, projector.tower.forms(tensors) | projector.forms(tensors)


def picture_problems(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """All problems of a mmproj file, whichever text model it belongs to."""
    try:
        projector = _projector(metadata, tensors, "the file")
    except ModelError as error:
        yield str(error)
    else:
        yield from tower_problems(projector, tensors)


def _projector(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], named: str) -> Projector:
    """The kind of a mmproj file.

    Raises:
        ModelError: it is no such file, or of a kind that is not known; a hyperparameter is wrong.
    """
    told = metadata.get("general.architecture")
    if not isinstance(told, str) or told != "clip":
        raise ModelError(
            f"{named} is no mmproj file: its general.architecture is {told!r:.64}, expected 'clip'"
        )
    kind = metadata.get("clip.projector_type")
    if kind is None or (isinstance(kind, str) and not kind):
        kind = metadata.get("clip.vision.projector_type")
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise ModelError(f"{named} has the clip.projector_type {kind!r:.64}, known are {known}")
    return KINDS[kind](Hyperparameters(metadata), tensors)
