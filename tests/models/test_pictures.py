"""Pictures: embeddings and prompts against llama.cpp, what prompts share, what is refused.

Not here: pictures over HTTP (tests/serve/test_pictures.py).
"""

from __future__ import annotations

import base64
import fnmatch
import io
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import picture_files as files
from models import random_models
from PIL import Image

import aggml
from aggml import InvalidArgument, Unsupported
from aggml.models import ModelError, problems_of
from aggml.models.engine.requests import PlacedPicture, TextRequest
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.vision.given import picture_of
from aggml.models.vision.internvl import InternVL
from aggml.models.vision.pixtral import Pixtral
from aggml.models.vision.resizing import resize
from aggml.models.vision.sizes import fitting_size

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from aggml.models.vision.encoder import PictureEncoder

pytestmark = pytest.mark.anyio

A, B, C = files.TEXTS
#: A template that goes through the parts of a content, as SmolVLM's, and one that does not.
PARTS = (
    "{% for m in messages %}{{ m['role'] }}:{% for p in m['content'] %}"
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}|{% endfor %}"
)
TEXT = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}"


def load(folder: Path, kind: str, **options: Any) -> Any:
    """The text model of a kind with its mmproj file."""
    template = {"tokenizer.chat_template": options.pop("template", TEXT)}
    text = files.write_text(folder / f"{kind}.gguf", kind, template)
    eyes = files.write_eyes(folder / f"{kind}-mmproj.gguf", kind)
    return aggml.models.load(text, **{"mmproj": eyes, "ctx": 512, "slots": 4, **options})


async def answer(model: Any, prompt: Any, n: int = 12, **options: Any) -> tuple[list[int], int]:
    """The tokens of an answer that no token ends, and how many of the prompt were cached."""
    stream = model.generate(prompt, max_tokens=n, stop_ids=(), **options)
    return [x.id async for x in stream], stream.cached_tokens


def png(rgb: NDArray[np.uint8]) -> bytes:
    found = io.BytesIO()
    Image.fromarray(rgb).save(found, "PNG")
    return found.getvalue()


# -- against llama.cpp


@pytest.mark.parametrize("kind", files.KINDS)
async def test_embeddings_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    known = files.recorded(kind)
    async with load(tmp_path, kind) as model:
        for i in range(len(files.SIZES)):
            found, right = await model.embed_image(files.picture(i)), known[f"rows{i}"]
            assert found.dtype == np.float32
            assert found.shape == (len(right), model.width)
            whole = (await model._pictures.embed(picture_of("", "", files.picture(i)))).rows
            assert whole.shape == right.shape  # qwen3vl has more behind each
            assert np.array_equal(whole[:, : model.width], found)
            # Both have GELU in a table of f16.
            assert np.abs(whole - right).max() < 1e-3 * np.abs(right).max(), i


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("kind", files.KINDS)
async def test_a_prompt_with_pictures_has_the_logits_and_the_answer_of_llama_cpp(
    kind: str, tmp_path: Path
) -> None:
    known = files.recorded(kind)
    prompt = [A, files.picture(0), B, files.picture(1), C]
    async with load(tmp_path, kind, cache="f32") as model:
        logits = await model.logits(prompt)
        right = known["logits"]
        assert logits.shape == (len(known["ids"]), model.vocabulary_size)
        scale = np.abs(right).max()
        assert np.abs(logits[-len(right) :] - right).max() < 4e-3 * scale
        assert (await answer(model, prompt))[0] == known["next"].tolist()


async def test_pieces_of_a_large_picture_are_those_of_llama_cpp(tmp_path: Path) -> None:
    kind = "lfm2-pieces"
    known, size = files.recorded(kind), files.KINDS[kind].large
    async with load(tmp_path, kind) as model:
        given = picture_of("", "", files.picture(0, size))
        found = await model._pictures.embed(given)
        rows, right = found.rows[:: files.LARGE_STEP], known["large"]
        assert np.abs(rows - right).max() < 1e-3 * np.abs(right).max()
        ids: list[int] = []
        for part in found.parts:
            ids += model.tokenizer.encode(part, special=False) if isinstance(part, str) else [-1]
        assert ids == [x for x in known["large_ids"].tolist() if x != model.tokenizer.bos]


def test_the_tower_of_the_largest_internvl_is_refused() -> None:
    hp = Hyperparameters(files.metadata_of("internvl") | {
        "clip.vision.block_count": 45, "clip.vision.embedding_length": 3200,
        "clip.vision.attention.head_count": 25,
    })  # fmt: skip
    with pytest.raises(ModelError, match="6 billion weights is not supported"):
        InternVL.read(hp, {})


@pytest.mark.parametrize("kind", ["lfm2", "paddleocr", "kimivl", "glm4v"])
def test_learned_places_that_are_no_square_are_refused(kind: str, tmp_path: Path) -> None:
    values = files.weights(kind)
    values["v.position_embd.weight"] = values["v.position_embd.weight"][1:]
    path = tmp_path / "eyes.gguf"
    _write_eyes(path, files.metadata_of(kind), kind, weights=values)
    with aggml.GGUFFile.open(path) as file:
        assert "expected as many as a square has places" in " ".join(
            problems_of(file.metadata, file.tensors)
        )


@pytest.mark.parametrize(
    ("size", "pieces"),
    [((448, 448), 0), ((449, 448), 2), ((900, 1800), 8), ((100, 5000), 12), ((1000, 1000), 9)],
)
def test_internvl_cuts_large_pictures_into_pieces_of_448_pixels(
    size: tuple[int, int], pieces: int
) -> None:
    hp = Hyperparameters(files.metadata_of("internvl") | {
        "clip.vision.image_size": 448, "clip.vision.patch_size": 14,
        "clip.vision.preproc_max_tiles": 12,
    })  # fmt: skip
    views = InternVL.read(hp, {}).views(np.zeros((*size, 3), np.uint8))
    assert len(views.pixels) == pieces + 1
    assert {x.shape for x in views.pixels} == {(448, 448, 3)}
    assert views.written == ["<img>", *range(pieces + 1), "</img>"]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((300, 200), (64, 48)), ((200, 300), (48, 64)), ((61, 61), (64, 64)), ((9, 900), (8, 64))],
)
def test_the_longer_side_of_a_picture_is_always_the_same_for_lightonocr(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    projector = Pixtral.read_lighton(Hyperparameters(files.metadata_of("lightonocr")), {})
    views = projector.views(np.zeros((*size, 3), np.uint8))
    assert [x.shape for x in views.pixels] == [(*wanted, 3)]


async def test_a_long_and_thin_picture_has_no_more_rows_than_gemma_4_has_places(
    tmp_path: Path,
) -> None:
    async with load(tmp_path, "gemma4v") as model:  # 64 places, three patches of a side are a token
        for size in ((9, 4000), (4000, 9)):
            rows = await model.embed_image(files.picture(0, size))
            assert len(rows) == 21


async def test_the_activation_of_gemma_4_is_gelu_where_the_file_does_not_name_it(
    tmp_path: Path,
) -> None:
    kind = "gemma4v"
    text = files.write_text(tmp_path / "text.gguf", kind)
    found = []
    for name in ("use_gelu", "use_silu", ""):
        metadata = files.metadata_of(kind)
        del metadata["clip.use_gelu"]
        _write_eyes(
            tmp_path / "eyes.gguf", metadata | ({f"clip.{name}": True} if name else {}), kind
        )
        async with aggml.models.load(text, mmproj=tmp_path / "eyes.gguf") as model:
            found.append(await model.embed_image(files.picture(0)))
    assert np.array_equal(found[0], found[2])
    assert not np.allclose(found[0], found[1])


async def test_bounds_of_gemma_4_are_kept(tmp_path: Path) -> None:
    """A matrix whose results have to be 0 gives the embeddings of one whose weights are 0."""
    kind = "gemma4v-bounded"
    text = files.write_text(tmp_path / "text.gguf", kind)
    found = []
    for name in ("v.blk.0.attn_out.output_max", "v.blk.0.attn_out.weight"):
        values = files.weights(kind)
        for changed in (name, name.replace("_max", "_min")):
            values[changed] *= 0
        eyes = tmp_path / "eyes.gguf"
        _write_eyes(eyes, files.metadata_of(kind), kind, weights=values)
        async with aggml.models.load(text, mmproj=eyes) as model:
            found.append(await model.embed_image(files.picture(0)))
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize(("least", "most"), [(float("nan"), 1.0), (2.0, 1.0), (0.0, float("nan"))])
async def test_bounds_that_nothing_can_keep_are_refused(
    tmp_path: Path, least: float, most: float
) -> None:
    kind = "gemma4v-bounded"
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    values = files.weights(kind)
    values["v.blk.1.ffn_up.output_min"][:] = least
    values["v.blk.1.ffn_up.output_max"][:] = most
    _write_eyes(eyes, files.metadata_of(kind), kind, weights=values)
    with pytest.raises(ModelError, match=r"v.blk.1.ffn_up.output_m.* expected a bound"):
        await aggml.models.load(text, mmproj=eyes)


async def test_a_file_may_have_tensors_for_sound_beside_those_for_pictures(tmp_path: Path) -> None:
    kind = "gemma4v"
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    metadata = files.metadata_of(kind)
    metadata["clip.vision.projector_type"] = metadata.pop("clip.projector_type")
    sound = {
        "a.blk.0.attn_q.input_max": np.ones(1, np.float32),
        "mm.a.input_projection.weight": np.ones((4, 4), np.float32),
    }
    _write_eyes(eyes, metadata, kind, weights=files.weights(kind) | sound)
    known = files.recorded(kind)["rows0"]
    async with aggml.models.load(text, mmproj=eyes) as model:
        found = await model.embed_image(files.picture(0))
        assert np.abs(found - known).max() < 1e-3 * np.abs(known).max()


def test_pairs_of_no_section_turn_with_the_time_in_texts_and_pictures() -> None:
    """So transformers has it; two pairs of Qwen3-VL belong to no section."""
    rows = PlacedPicture(4, np.zeros((6, 8), np.float32), grid=(3, 2))
    found = TextRequest([1, 2, 3, 4, *[-1] * 6, 5, 6], pictures=(rows,)).rotary(0, 12)
    assert found is not None
    assert found.tolist() == [
        [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8],
        [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8],
        [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8],
    ]


@pytest.mark.parametrize("by", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(31, 17), (50, 70), (200, 9), (1, 1), (64, 50)])
def test_resized_pictures_are_those_of_pillow_to_the_last_bit(
    size: tuple[int, int], by: Any
) -> None:
    # First along rows, as llama.cpp does; Pillow 13 begins with the side that takes less work.
    random = np.random.default_rng(3)
    rgb = random.integers(0, 256, (50, 70, 3)).astype(np.uint8)
    width, height = size
    how = getattr(Image.Resampling, by.upper())
    wide = Image.fromarray(rgb).resize((width, 50), how)
    right = np.asarray(wide.resize((width, height), how))
    assert np.array_equal(resize(rgb, width, height, by), right)


def test_sizes_that_fit_are_multiples_within_the_bounds() -> None:
    random = np.random.default_rng(5)
    for _ in range(500):
        width, height = (int(x) for x in np.exp(random.uniform(0, 10, 2)))
        wide, tall = fitting_size(width, height, unit=28, least=8 * 28**2, most=1024 * 28**2)
        assert wide % 28 == tall % 28 == 0
        assert 28 * 28 <= wide * tall <= 1024 * 28**2
        if 1 / 20 < width / height < 20:
            assert wide * tall >= 8 * 28**2
            assert 0.4 < (wide / tall) / (width / height) < 2.5


# -- steps


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("kind", files.KINDS)
async def test_pictures_in_several_sequences_and_small_steps_change_no_answer(
    kind: str, tmp_path: Path
) -> None:
    prompts: list[Any] = [
        [A, files.picture(0), B, files.picture(1), C],
        [files.picture(2), C],
        A + B,
        [B, files.picture(1)],
        [A, files.picture(0), " Why?"],
    ]
    async with load(tmp_path, kind, cache="f32", prefix_cache=0) as model:
        alone = [(await answer(model, x))[0] for x in prompts]
    for chunk in (33, 64):
        found: list[list[int]] = [[]] * len(prompts)
        async with load(tmp_path, kind, cache="f32", prefix_cache=0, chunk=chunk) as model:

            async def ask(i: int, model: Any = model, found: Any = found) -> None:
                found[i] = (await answer(model, prompts[i]))[0]

            async with anyio.create_task_group() as group:
                for i in range(len(prompts)):
                    group.start_soon(ask, i)
        assert found == alone, chunk


async def test_a_picture_longer_than_a_step_is_computed_at_once_where_its_positions_see_each_other(
    tmp_path: Path,
) -> None:
    prompt = [A * 2, files.picture(0), C]  # 16 positions, a step has 8 beside a running sequence
    async with load(tmp_path, "gemma3", cache="f32") as model:
        right = (await answer(model, prompt))[0]
    async with load(tmp_path, "gemma3", cache="f32", chunk=8) as model:
        first = model.generate(B, max_tokens=60, stop_ids=())
        await anext(first)
        assert (await answer(model, prompt))[0] == right
        await first.aclose()


async def test_a_preempted_sequence_with_a_picture_goes_on_with_the_same_tokens(
    tmp_path: Path,
) -> None:
    prompt = [A, files.picture(0), C]
    async with load(tmp_path, "gemma3", cache="f32", slots=1) as model:
        right, _ = await answer(model, prompt, 40)
        model.engine._swap = 0  # so that its positions are computed again
        model.engine.prefixes.clear()
        stream = model.generate(prompt, max_tokens=40, stop_ids=())
        made = [(await anext(stream)).id]
        await answer(model, B, 4, priority=5)
        made += [x.id async for x in stream]
        assert model.engine.counters.preemptions == 1
        assert made == right


async def test_penalties_and_logprobs_know_no_tokens_of_pictures(tmp_path: Path) -> None:
    prompt = [A, files.picture(0), C]
    async with load(tmp_path, "idefics3") as model:
        right, _ = await answer(model, prompt)
        found = await answer(model, prompt, repetition_penalty=1.0, logprobs=2)
        assert found[0] == right
        penalties: tuple[dict[str, Any], ...] = (
            {"repetition_penalty": 1.3}, {"dry_multiplier": 0.8}, {"presence_penalty": 0.5},
        )  # fmt: skip
        for options in penalties:
            made, _ = await answer(model, prompt, **options)
            assert len(made) == 12
            assert min(made) >= 0


# -- what is shared


async def test_prompts_with_the_same_picture_share_its_positions_and_others_do_not(
    tmp_path: Path,
) -> None:
    one, other = files.picture(0), files.picture(0).copy()
    other[20:30] = 255 - other[20:30]
    async with load(tmp_path, "idefics3", cache="f32", prefix_cache=0) as model:
        right = [(await answer(model, [A, x, C]))[0] for x in (one, other)]
        after = (await answer(model, [A, one, " And then?"]))[0]
        n = len(await model.logits([A, one]))
    async with load(tmp_path, "idefics3", cache="f32") as model:
        assert await answer(model, [A, one, C]) == (right[0], 0)
        made, cached = await answer(model, [A, one, " And then?"])
        assert cached >= n  # text, picture and the tokens around it
        assert made == after
        made, cached = await answer(model, [A, other, C])
        assert cached <= len(A) + 1 + 2  # the tokens before the first piece's embeddings
        assert made == right[1]


async def test_pages_with_pictures_are_found_again_when_slots_hold_other_prompts(
    tmp_path: Path,
) -> None:
    prompt = [A, files.picture(0), C]
    options: dict[str, Any] = {"prefix_folder": tmp_path / "pages", "slots": 1}
    async with load(tmp_path, "idefics3", **options) as model:
        right, _ = await answer(model, prompt)
        await answer(model, B * 8)  # takes the only slot
        made, cached = await answer(model, prompt)
        assert cached >= 64
        assert made == right
    async with load(tmp_path, "idefics3", **options) as model:  # from files
        # The files were written again at that place, but with the same time stamps they are the
        # same model only if they are the same files: so this may find nothing, but nothing wrong.
        made, _ = await answer(model, prompt)
        assert made == right


async def test_a_picture_that_was_seen_is_not_computed_again_and_the_cache_is_bounded(
    tmp_path: Path,
) -> None:
    async with load(tmp_path, "gemma3") as model:
        eyes: PictureEncoder = model._pictures
        first = await model.embed_image(files.picture(0))
        first[:] = 0  # a copy
        assert np.abs(await model.embed_image(files.picture(0).copy())).max() > 0.1
        await answer(model, [A, files.picture(0)])
        assert eyes.computed == 1
        size = first.nbytes
        eyes._cache = 2 * size
        for i in (1, 2, 1, 2):
            await model.embed_image(files.picture(i))
        assert eyes.computed == 3
        assert eyes._nbytes == 2 * size
        await model.embed_image(files.picture(0))  # it was given up
        assert eyes.computed == 4
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(model.embed_image, files.picture(1))
        assert eyes.computed == 5


# -- messages


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("template", [TEXT, PARTS])
async def test_pictures_in_messages_stand_where_they_are_among_texts(
    template: str, tmp_path: Path
) -> None:
    one, other = files.picture(0), files.picture(1)
    url = "data:image/png;base64," + base64.b64encode(png(one)).decode()
    bare = base64.b64encode(png(other)).decode()
    async with load(tmp_path, "idefics3", template=template) as model:
        right, _ = await answer(model, ["user:a ", one, "b", other, "|"])
        contents: list[list[Any]] = [
            [
                {"type": "text", "text": "a "}, {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "b"}, {"type": "image_url", "image_url": bare},
            ],
            [
                {"type": "text", "text": "a "}, {"type": "image", "image": one},
                {"type": "text", "text": "b"}, png(other),
            ],
            [
                {"type": "text", "text": "a "}, one, {"type": "text", "text": "b"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                 "data": bare}},
            ],
            ["a ", one, "b", other],
        ]  # fmt: skip
        for content in contents:
            stream = model.chat_stream(
                [{"role": "user", "content": content}], max_tokens=12, stop_ids=()
            )
            made = [x.id async for delta in stream for x in delta.tokens]
            assert made == right
            assert stream.usage.prompt_tokens == len(
                await model.logits(["user:a ", one, "b", other, "|"])
            )


async def test_a_template_that_leaves_a_picture_out_is_an_error(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['content'][:1] }}{% endfor %}"
    message = {"role": "user", "content": [{"type": "text", "text": "abc"}, files.picture(0)]}
    async with load(tmp_path, "gemma3", template=template) as model:
        with pytest.raises(ModelError, match="the chat template writes 0 pictures"):
            await model.chat([message])


async def test_bytes_of_a_file_give_the_embeddings_of_their_pixels(tmp_path: Path) -> None:
    rgb = files.picture(0)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    Image.fromarray(np.rot90(rgb)).save(turned, "PNG", exif=exif)
    transparent = io.BytesIO()
    Image.fromarray(np.dstack([rgb, np.full(rgb.shape[:2], 9, np.uint8)])).save(transparent, "PNG")
    async with load(tmp_path, "gemma3") as model:
        right = await model.embed_image(rgb)
        for data in (png(rgb), turned.getvalue(), transparent.getvalue()):
            assert np.array_equal(await model.embed_image(data), right)


# -- what is refused

WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.zeros((8, 8, 3), np.float32), InvalidArgument, r"rgb is an array of float32, expected"),
    (np.zeros((8, 8), np.uint8), InvalidArgument, r"rgb has the shape \[8, 8\], expected"),
    (np.zeros((8, 8, 4), np.uint8), InvalidArgument, r"rgb has the shape \[8, 8, 4\]"),
    (np.zeros((0, 8, 3), np.uint8), InvalidArgument, r"rgb has 8 x 0 pixels"),
    (
        np.broadcast_to(np.uint8(0), (9000, 9000, 3)),
        InvalidArgument,
        r"rgb has 9000 x 9000 pixels",
    ),
    (np.broadcast_to(np.uint8(0), (1, 40000, 3)), InvalidArgument, r"rgb has 40000 x 1 pixels"),
    (5, InvalidArgument, r"rgb is 5 \(int\), expected uint8"),
    (b"", InvalidArgument, r"rgb is empty"),
    (b"no picture", InvalidArgument, r"rgb is no picture that can be read"),
    ("https://example.org/x.png", Unsupported, r"rgb is the address .* never fetched"),
    ("file:///etc/passwd", Unsupported, r"rgb is the address .* never fetched"),
    ("data:image/png,xyz", InvalidArgument, r"rgb is a data URL without ';base64'"),
    ("data:text/plain;base64,eA==", InvalidArgument, r"rgb is data of the type 'text/plain'"),
    ("data:image/png;base64,%%%", InvalidArgument, r"rgb is no base64"),
    ("not base 64!", InvalidArgument, r"rgb is 'not base 64!'"),
    ("", InvalidArgument, r"rgb is ''"),
]


async def test_what_is_no_picture_is_refused_by_its_name(tmp_path: Path) -> None:
    async with load(tmp_path, "gemma3") as model:
        for value, error, message in WRONG:
            with pytest.raises(error, match=rf"^\[embed_image\] {message}"):
                await model.embed_image(value)
        with pytest.raises(InvalidArgument, match=r"^\[generate\] prompt\[1\] has the shape"):
            model.generate(["a", np.zeros((2, 2), np.uint8)])
        with pytest.raises(InvalidArgument, match=r"^\[generate\] prompt\[1\] is None"):
            model.generate([files.picture(0), None])
        with pytest.raises(InvalidArgument, match=r"^\[logits\] ids\[0\]"):
            await model.logits([np.zeros((2, 2, 3)), "a"])
        with pytest.raises(aggml.models.TooLongError):
            await model.logits([files.picture(0)] * 40)
        with pytest.raises(aggml.models.TooLongError):
            await answer(model, [files.picture(0)] * 40)
        parts: list[tuple[Any, type[Exception], str]] = [
            ({"type": "image_url", "image_url": {"url": "http://h/x"}}, Unsupported,
             r"image_url.url is the address 'http://h/x': addresses are never fetched"),
            ({"type": "image", "source": {"type": "url", "url": "http://h/x"}}, Unsupported,
             r"source is the address"),
            ({"type": "image_url"}, InvalidArgument, r"image_url is None"),
            ({"type": "image_url", "image_url": "eA==", "x": 1}, InvalidArgument,
             r" has the key 'x'"),
            ({"type": "sound"}, InvalidArgument, r"type is 'sound', expected 'text' or"),
        ]  # fmt: skip
        for part, error, message in parts:
            with pytest.raises(error, match=rf"^\[chat\] messages\[0\].content\[0\].*{message}"):
                await model.chat([{"role": "user", "content": [part]}])
        with pytest.raises(InvalidArgument, match="its role is 'assistant'"):
            await model.chat([{"role": "assistant", "content": [files.picture(0)]}])
        assert len((await answer(model, [A, files.picture(0)]))[0]) == 12


async def test_a_file_that_stands_for_too_many_pixels_is_refused_before_they_are_computed(
    tmp_path: Path,
) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    async with load(tmp_path, "gemma3") as model:
        for side in (10000, 30000):  # Pillow itself refuses the larger one
            head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
            bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
            bomb += chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
            with pytest.raises(InvalidArgument, match=rf"{side} x {side} pixels|{side**2} pixels"):
                await model.embed_image(bomb)


async def test_a_model_without_mmproj_reads_text_alone(tmp_path: Path) -> None:
    rgb = files.picture(0)
    async with load(tmp_path, "gemma3", mmproj=None) as model:
        assert not model.sees
        with pytest.raises(Unsupported, match=r"^\[embed_image\] .* load it with mmproj="):
            await model.embed_image(rgb)
        with pytest.raises(Unsupported, match=r"^\[logits\] .* reads text alone"):
            await model.logits(["a", rgb])
        with pytest.raises(Unsupported, match=r"^\[generate\] .* reads text alone"):
            model.generate(["a", rgb])
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
        with pytest.raises(InvalidArgument, match=r"reads text alone; load it with mmproj="):
            await model.chat([{"role": "user", "content": [part]}])


async def test_a_file_that_does_not_belong_to_the_model_is_refused(tmp_path: Path) -> None:
    text = files.write_text(tmp_path / "text.gguf", "gemma3")

    async def refuse(match: str, path: Path, model: Path = text) -> None:
        with pytest.raises((ModelError, InvalidArgument), match=match):
            await aggml.models.load(model, mmproj=path)

    def eyes(**changed: Any) -> Path:
        return files.write_eyes(tmp_path / "eyes.gguf", "gemma3", **changed)

    await refuse("is no mmproj file", text)
    await refuse("cannot open the mmproj file", tmp_path / "missing.gguf")
    await refuse("makes embeddings of 65 elements", eyes(projection_dim=65))
    await refuse("has the extents", eyes(feed_forward_length=81))
    await refuse("no tensor 'v.blk.2", eyes(block_count=3))
    await refuse("which 5 heads do not divide", eyes(attention__head_count=5))
    await refuse("expected a multiple of the patch_size", eyes(patch_size=5))
    await refuse("scale_factor is 3", eyes(projector__scale_factor=3))
    await refuse("image_std", eyes(image_std=[0.0, 1.0, 1.0]))
    await refuse("image_mean", eyes(image_mean=[0.0]))
    encoder = random_models.write(tmp_path / "bert.gguf", "bert", random_models.words())
    await refuse("does not continue text", eyes(), encoder)
    with pytest.raises(InvalidArgument, match=r"^\[load\] mmproj is 5"):
        aggml.models.load(text, mmproj=5)  # type: ignore[arg-type]
    kind = tmp_path / "kind.gguf"
    with aggml.GGUFWriter(kind) as writer:
        writer.add("general.architecture", "clip")
        writer.add("clip.projector_type", "ldp")
        writer.add_tensor("v.x", np.zeros(4, np.float32))
    await refuse("clip.projector_type 'ldp', known are", kind)


# -- lifetime


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("gemma3", "clip.vision.image_mean", [[1], [2]]),
        ("idefics3", "clip.vision.image_std", ["a", "b"]),
        ("qwen3vl", "clip.vision.image_mean", [True, True, True]),
        ("qwen2.5vl", "clip.projector_type", [1, 2]),
        ("pixtral", "general.architecture", [1, 2]),
        ("internvl", "clip.vision.projector.scale_factor", 3),
        ("internvl", "clip.vision.preproc_min_tiles", 0),
        ("internvl", "clip.vision.preproc_max_tiles", 100),
        ("lfm2", "clip.vision.projector.scale_factor", 3),
        ("paddleocr", "clip.vision.image_max_pixels", 1000),
        ("dots_ocr", "clip.vision.image_min_pixels", 0),
        ("kimivl", "clip.vision.projector.scale_factor", 1),
        ("lightonocr", "clip.vision.preproc_image_size", 1 << 20),
        ("glm4v", "clip.vision.spatial_merge_size", 3),
        ("gemma4v", "clip.vision.projector.scale_factor", 0),
    ],
)
async def test_a_wrong_value_of_a_mmproj_file_is_refused_by_its_key(
    tmp_path: Path, kind: str, key: str, value: Any
) -> None:
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    _write_eyes(eyes, files.metadata_of(kind) | {key: value}, kind)
    with pytest.raises(ModelError, match=re.escape(key)):
        await aggml.models.load(text, mmproj=eyes)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gemma3", "v.blk.0.ln2.bias"),
        ("idefics3", "v.blk.1.attn_k.bias"),
        ("pixtral-merged", "v.blk.0.ffn_gate.weight"),
        ("qwen2.5vl", "v.blk.0.attn_v.bias"),
    ],
)
async def test_a_layer_of_a_mmproj_file_has_the_tensors_of_the_others(
    tmp_path: Path, kind: str, name: str
) -> None:
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    assert name in files.weights(kind)
    _write_eyes(eyes, files.metadata_of(kind), kind, without=name)
    with pytest.raises(ModelError, match=rf"no tensor '{re.escape(name)}', which other layers"):
        await aggml.models.load(text, mmproj=eyes)


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("kind", files.KINDS)
async def test_a_mmproj_file_that_lacks_any_one_of_its_tensors_is_refused_by_its_name(
    tmp_path: Path, kind: str
) -> None:
    """Also a bias or a norm that stands alone, without which all pictures look otherwise."""
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    names = list(files.weights(kind))
    _write_eyes(eyes, files.metadata_of(kind), kind)
    with aggml.GGUFFile.open(eyes) as file:
        assert list(problems_of(file.metadata, file.tensors)) == []
        metadata, tensors = file.metadata, dict(file.tensors)
        for name in names:
            left = {x: tensors[x] for x in names if x != name}
            found = " ".join(problems_of(metadata, left))
            assert f"no tensor '{name}'" in found, name
        more = tensors | {"v.blk.0.ls9.weight": tensors[names[0]]}
        assert "'v.blk.0.ls9.weight', which nothing here reads" in " ".join(
            problems_of(metadata, more)
        )
    # Layers have their own test above; these are the others.
    for name in [x for x in names if not x.startswith("v.blk.")][::3]:
        _write_eyes(eyes, files.metadata_of(kind), kind, without=name)
        with pytest.raises(ModelError, match=rf"no tensor '{re.escape(name)}'"):
            await aggml.models.load(text, mmproj=eyes)


@pytest.mark.parametrize("kind", ["gemma3", "pixtral", "qwen2.5vl"])
async def test_a_mmproj_file_without_a_bias_in_all_layers_is_refused(
    tmp_path: Path, kind: str
) -> None:
    text, eyes = files.write_text(tmp_path / "text.gguf", kind), tmp_path / "eyes.gguf"
    name = "mm.1.bias" if kind == "pixtral" else "v.blk.0.attn_out.bias"
    _write_eyes(eyes, files.metadata_of(kind), kind, without=name.replace(".0.", ".*."))
    with pytest.raises(ModelError, match=rf"no tensor '{re.escape(name)}'"):
        await aggml.models.load(text, mmproj=eyes)
    with aggml.GGUFFile.open(eyes) as file:
        assert any(name in x for x in problems_of(file.metadata, file.tensors))


def _write_eyes(
    path: Path,
    metadata: dict[str, Any],
    kind: str,
    without: str = "",
    weights: dict[str, NDArray[np.float32]] | None = None,
) -> None:
    types = files.KINDS[kind].types
    with aggml.GGUFWriter(path) as writer:
        for key, value in metadata.items():
            writer.add(key, value)
        for name, values in (weights or files.weights(kind)).items():
            half = any(name.endswith(end) for end in types)
            if not fnmatch.fnmatch(name, without):
                writer.add_tensor(name, values.astype(np.float16) if half else values)


async def test_the_memory_of_a_model_has_that_of_its_mmproj_file(tmp_path: Path) -> None:
    async with load(tmp_path, "gemma3") as model, load(tmp_path, "gemma3", mmproj=None) as other:
        await model.embed_image(files.picture(0))
        nbytes = sum(x.nbytes for x in files.weights("gemma3").values())
        assert model.memory.mapped - other.memory.mapped >= nbytes
        assert model.memory.graphs > other.memory.graphs


async def test_a_cancelled_picture_leaves_the_model_usable_and_a_closed_one_says_so(
    tmp_path: Path,
) -> None:
    async with load(tmp_path, "idefics3") as model:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await model.embed_image(files.picture(0))
        assert (await model.embed_image(files.picture(0))).shape == (80, 64)
    with pytest.raises(aggml.InvalidState, match="the model is closed"):
        await model.embed_image(files.picture(0))


def test_a_blocking_model_takes_pictures(tmp_path: Path) -> None:
    text = files.write_text(tmp_path / "text.gguf", "gemma3", {"tokenizer.chat_template": TEXT})
    eyes = files.write_eyes(tmp_path / "eyes.gguf", "gemma3")
    known = files.recorded("gemma3")
    with aggml.models.blocking.load(text, mmproj=eyes, ctx=512) as model:
        assert model.sees
        assert np.abs(model.embed_image(files.picture(0)) - known["rows0"]).max() < 2e-3
        prompt: list[str | NDArray[np.uint8]] = [A, files.picture(0), B, files.picture(1), C]
        made = [x.id for x in model.generate(prompt, max_tokens=4)]
        assert made == known["next"][:4].tolist()
