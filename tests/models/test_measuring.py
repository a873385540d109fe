"""Importance matrices, perplexity and divergence are those of llama.cpp.

Its sums and probabilities were recorded (benchmarks/make_imatrix.py). Here, too: files of saved
logits, arguments. Not here: reading importance matrices (test_imatrix.py), the program
(tests/cli/test_evaluating.py).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from models import random_models
from models.test_rank_heads import vocabulary

import aggml
from aggml.models import ModelError, evaluate, measure_imatrix
from aggml.models.imatrix import read_imatrix
from aggml.models.saved_logits import LogitReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

CTX: Final = 64
#: Dense; experts, and matrices of several planes; experts with biases and sinks; states.
LAYOUTS: Final = ("llama", "deepseek2", "gpt-oss", "qwen3next", "qwen3moe")
RECORDED: Final = Path(__file__).with_name("reference_imatrix.npz")


def text() -> str:
    """Letters of which each is one token in `vocabulary`: the number of its byte."""
    return "".join(map(chr, np.random.default_rng(7).integers(33, 90, 2 * CTX + 9)))


def chunks() -> list[list[int]]:
    ids = list(text().encode())
    return [ids[:CTX], ids[CTX : 2 * CTX]]


def recorded(name: str) -> dict[str, NDArray[Any]]:
    with np.load(RECORDED) as found:
        return {k.removeprefix(f"{name}/"): found[k] for k in found.files if k.startswith(name)}


def written(folder: Path, name: str) -> Path:
    return random_models.write(folder / f"{name}.gguf", name, vocabulary())


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("name", LAYOUTS)
async def test_sums_of_squares_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    target, seen = tmp_path / "imatrix.gguf", list[tuple[int, int]]()
    path = written(tmp_path, name)
    found = await measure_imatrix(
        path, text(), target, ctx=CTX, output=True, dataset="letters",
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(0, 2), (1, 2), (2, 2)]
    wanted = recorded(name)
    names = {key.removesuffix(".sums") for key in wanted if key.endswith(".sums")}
    unused = sum(int((x == 0).sum()) for key, x in wanted.items() if key.endswith(".counts"))
    assert (found.chunks, found.tokens, found.matrices) == (2, 2 * CTX, len(names))
    assert found.unused == unused
    with aggml.GGUFFile.open(target) as file:
        assert file.metadata == {
            "general.type": "imatrix", "imatrix.datasets": ["letters"],
            "imatrix.chunk_count": 2, "imatrix.chunk_size": CTX,
        }  # fmt: skip
        assert {*file.tensors} == {f"{x}.{end}" for x in names for end in ("in_sum2", "counts")}
        assert [*file.tensors] == sorted(file.tensors, key=lambda x: x.rsplit(".", 1)[0])
        for one in names:
            sums, counts = wanted[f"{one}.sums"], wanted[f"{one}.counts"]
            got = file.data(f"{one}.counts").view(np.float32)
            assert file.tensors[f"{one}.counts"].ne[:2] == (1, len(counts))
            np.testing.assert_array_equal(got, counts)
            got = file.data(f"{one}.in_sum2").view(np.float32)
            worst = np.linalg.norm(got - sums.reshape(-1)) / np.linalg.norm(sums)
            assert worst < 3e-3, one
    weights = read_imatrix(target)
    assert {*weights} == names
    small = tmp_path / "small.gguf"
    await aggml.models.convert(path, small, "q4_0", imatrix=target)


async def test_the_output_is_left_out_unless_it_is_wanted(tmp_path: Path) -> None:
    target = tmp_path / "imatrix.gguf"
    await measure_imatrix(written(tmp_path, "llama"), text(), target, ctx=CTX, chunks=1)
    wanted = {x.removesuffix(".sums") for x in recorded("llama") if x.endswith(".sums")}
    assert {*read_imatrix(target)} == wanted - {"output.weight"}
    assert "output.weight" in wanted


async def test_long_chunks_are_computed_in_pieces_and_short_ones_alike(tmp_path: Path) -> None:
    path, letters = written(tmp_path, "llama"), text() * 11
    ids = list(letters.encode())
    assert len(ids) > 1400
    target = tmp_path / "imatrix.gguf"
    found = await measure_imatrix(path, letters, target, ctx=700)  # 512 and 188
    assert (found.chunks, found.tokens) == (2, 1400)
    long = await evaluate(path, letters, ctx=700)
    assert long.tokens == 2 * (700 - 350 - 1)
    async with await aggml.models.load(path, ctx=1024) as model:
        nll = []
        for ids_of in (ids[:700], ids[700:1400]):
            logits = (await model.logits(ids_of)).astype(np.float64)[350:699]
            top = logits.max(axis=1)
            whole = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
            nll += (whole - logits[np.arange(349), ids_of[351:]]).tolist()
    assert np.log(long.ppl) == pytest.approx(np.mean(nll), rel=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
async def test_perplexity_is_that_of_llama_cpp(tmp_path: Path, name: str) -> None:
    lp = recorded(name)["lp"]
    nll = -np.concatenate([
        rows[np.arange(len(rows)), ids[CTX // 2 + 1 :]]
        for rows, ids in zip(lp, chunks(), strict=True)
    ])  # fmt: skip
    got = await evaluate(written(tmp_path, name), text(), ctx=CTX)
    assert (got.chunks, got.tokens) == (2, len(nll))
    assert np.log(got.ppl) == pytest.approx(nll.mean(), rel=1e-3)
    error = nll.std() / np.sqrt(len(nll) - 1)
    assert got.ppl_error / got.ppl == pytest.approx(error, rel=1e-2)
    assert got.divergence is None


async def test_divergence_from_a_model_and_from_its_saved_logits(tmp_path: Path) -> None:
    """Both bases give the numbers that the probabilities of llama.cpp give."""
    mine, base = (recorded(x)["lp"].reshape(-1, 320).astype(np.float64)
                  for x in ("llama", "qwen3moe"))  # fmt: skip
    ids = np.concatenate([x[CTX // 2 + 1 :] for x in chunks()])
    each = np.arange(len(ids))
    kl = (np.exp(base) * (base - mine)).sum(axis=1)
    change = np.exp(mine[each, ids]) - np.exp(base[each, ids])
    same = float((mine.argmax(axis=1) == base.argmax(axis=1)).mean())
    path, other = written(tmp_path, "llama"), written(tmp_path, "qwen3moe")
    saved = tmp_path / "base.logits"
    alone = await evaluate(other, text(), ctx=CTX, save_logits=saved)
    assert not (tmp_path / "base.logits.part").exists()
    _check_by_hand(saved, base)
    for about, told in (("model", other), ("file", saved)):
        given = text() if about == "model" else None
        got = await evaluate(path, given, ctx=CTX, kl_base=told)
        apart = got.divergence
        assert apart is not None
        assert apart.kl == pytest.approx(kl.mean(), rel=2e-3), about
        assert apart.kl_error == pytest.approx(kl.std() / np.sqrt(len(kl) - 1), rel=1e-2)
        assert apart.kl_max == pytest.approx(kl.max(), rel=1e-2)
        assert apart.kl_percentiles[50.0] == pytest.approx(np.median(kl), rel=1e-2)
        assert apart.same_top == pytest.approx(same, abs=0.02)
        assert apart.dp == pytest.approx(change.mean(), abs=1e-4)
        assert apart.dp_rms == pytest.approx(np.sqrt((change**2).mean()), rel=1e-2)
        assert apart.base_ppl == pytest.approx(alone.ppl, rel=1e-3)
        assert apart.ln_ratio == pytest.approx(np.log(got.ppl / alone.ppl), abs=1e-3)
        assert apart.ln_ratio_error > 0


def _check_by_hand(path: Path, wanted: NDArray[np.float64]) -> None:
    """Read a file of saved logits as its form says: a head, tokens, rows."""
    raw = path.read_bytes()
    assert struct.unpack_from("<8sIii", raw) == (b"_logits_", CTX, 320, 2)
    ids = np.frombuffer(raw, "<i4", 2 * CTX, 20).reshape(2, CTX)
    assert ids.tolist() == chunks()
    rows = np.frombuffer(raw, "<u2", -1, 20 + 8 * CTX).reshape(-1, 324)
    assert len(rows) == 2 * (CTX - CTX // 2 - 1) == len(wanted)
    for row, lp in zip(rows, wanted, strict=True):
        scale, least = struct.unpack("<ff", row[:4].tobytes())
        got = row[4:].astype(np.float64) * scale + least
        np.testing.assert_allclose(got, np.maximum(lp, lp.max() - 16), atol=2e-2)


async def test_a_model_does_not_differ_from_itself(tmp_path: Path) -> None:
    path = written(tmp_path, "llama")
    got = (await evaluate(path, text(), ctx=CTX, kl_base=path)).divergence
    assert got is not None
    assert (got.kl, got.kl_max, got.dp_rms, got.same_top, got.ln_ratio) == (0, 0, 0, 1, 0)
    assert got.dp_rms_error == 0
    assert got.ln_ratio_error == pytest.approx(0, abs=1e-7)


async def test_what_cannot_be_measured_is_refused_by_name(tmp_path: Path) -> None:
    path, saved = written(tmp_path, "llama"), tmp_path / "saved"
    with pytest.raises(aggml.InvalidArgument, match="has 3 tokens, expected were at least 512"):
        await evaluate(path, "ABC")
    with pytest.raises(aggml.InvalidArgument, match=r"\[evaluate\] text is missing"):
        await evaluate(path)
    with pytest.raises(aggml.InvalidArgument, match=r"\[measure_imatrix\] ctx is 8"):
        await measure_imatrix(path, text(), saved, ctx=8)
    await evaluate(path, text(), ctx=CTX, save_logits=saved)
    with pytest.raises(aggml.InvalidArgument, match="the text is not that of"):
        await evaluate(path, text()[::-1], ctx=CTX, kl_base=saved)
    whole = saved.read_bytes()
    for damaged, why in (
        (whole[:-2], "bytes, expected were"),
        (whole[:12], "no file of saved logits"),
        (whole[:12] + struct.pack("<i", -3) + whole[16:], "a vocabulary of -3"),
        (whole[:20] + struct.pack("<i", 999) + whole[24:], "not in its vocabulary"),
    ):
        saved.write_bytes(damaged)
        with pytest.raises(ModelError, match=why):
            await evaluate(path, ctx=CTX, kl_base=saved)
    encoder = random_models.write(tmp_path / "bert.gguf", "bert", random_models.words("▁a"))
    with pytest.raises(ModelError, match="is an encoder"):
        await evaluate(encoder, "a " * 600)
    silent = random_models.write(tmp_path / "silent.gguf", "llama")
    with pytest.raises(ModelError, match="has no vocabulary"):
        await measure_imatrix(silent, text(), saved)


async def test_a_failed_evaluation_leaves_an_old_file_of_logits(tmp_path: Path) -> None:
    path, saved = written(tmp_path, "llama"), tmp_path / "saved"
    saved.write_bytes(b"old")

    def fail(done: int, _: int) -> None:
        if done:
            raise OSError("enough")

    with pytest.raises(OSError, match="enough"):
        await evaluate(path, text(), ctx=CTX, save_logits=saved, progress=fail)
    assert saved.read_bytes() == b"old"
    assert not (tmp_path / "saved.part").exists()


def test_rows_of_saved_logits_are_read_from_the_middle(tmp_path: Path) -> None:
    rows = np.arange(2 * 3 * 8, dtype="<u2").reshape(6, 8)
    about = np.array([[0.5, -1.0]], "<f4").view("<u2")
    rows = np.concatenate([np.repeat(about, 6, axis=0), rows], axis=1)
    head = struct.pack("<8sIii", b"_logits_", 8, 7, 2)
    path = tmp_path / "saved"
    path.write_bytes(head + np.zeros(16, "<i4").tobytes() + rows.tobytes())
    with LogitReader(path) as file:
        found = file.rows(1, 1, 2)
    np.testing.assert_array_equal(found, rows[4:6, 4:11] * 0.5 - 1.0)
