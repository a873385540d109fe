"""Several processes run the tests (pytest-xdist): which tests run alone, which are left out.

Marks: ``alone`` (measures time, or counts what the machine shares: no other process runs a test
meanwhile), ``slow`` (a long sweep: for ``--all``), ``long`` (takes seconds: so many of its cases
unless ``--long`` is given, as CI does), ``either_loop`` (numbers and messages: on one of the two
loops; also all tests of the files in `EITHER_LOOP`). A file that is named is run whole.
Not here: how many processes (the Makefile says ``-n``), tests that hang (watch.py).
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.assertion import rewrite
from _pytest.runner import runtestprotocol
from watch import Watch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

__all__ = ["EITHER_LOOP", "Brief", "Turns", "Workers", "rewrite_asserts"]

#: After this many tests, all objects that are alive are frozen, so that the collector skips them.
FREEZE = 500


#: Files whose tests look at what no loop changes: numbers and messages. Each case runs on one loop,
#: which its name decides, so that the cases of a function meet both; all run on both where slow
#: tests run. In other files the mark ``either_loop`` says the same of single tests.
#: The loops themselves are the matter of other files: test_any_loop.py, test_off_the_loop.py, ...
EITHER_LOOP = frozenset(
    {
        "conversion/test_not_finite.py",
        "conversion/test_quant.py",
        "devices/cuda/device/test_blas.py",
        "devices/cuda/device/test_corpus.py",
        "devices/cuda/device/test_fusion_chain.py",
        "devices/cuda/device/test_fusion_experts.py",
        "devices/cuda/device/test_fusion_pair.py",
        "devices/cuda/device/test_fusion_rope.py",
        "devices/cuda/device/test_kernels_on_it.py",
        "devices/cuda/device/test_models.py",
        "devices/cuda/device/test_strided.py",
        "devices/meta/test_conformance.py",
        "devices/meta/test_models.py",
        "devices/meta/test_parts.py",
        "devices/meta/test_schedules.py",
        "examples/test_adjusting.py",
        "models/engine/test_beginnings.py",
        "models/engine/test_checkpoints.py",
        "models/engine/test_faults.py",
        "models/engine/test_memory.py",
        "models/engine/test_not_finite.py",
        "models/engine/test_preemption.py",
        "models/engine/test_random_requests.py",
        "models/engine/test_shared.py",
        "models/engine/test_speculation.py",
        "models/engine/test_states.py",
        "models/kv/test_prefix_files.py",
        "models/kv/test_prefixes.py",
        "models/kv/test_snapshots.py",
        "models/test_adapter_files.py",
        "models/test_adapters.py",
        "models/test_ahead.py",
        "models/test_answers.py",
        "models/test_architectures.py",
        "models/test_arguments.py",
        "models/test_chat.py",
        "models/test_chat_arguments.py",
        "models/test_checking.py",
        "models/test_constraints.py",
        "models/test_devices.py",
        "models/test_drafts.py",
        "models/test_encoders.py",
        "models/test_fit.py",
        "models/test_folder_pooling.py",
        "models/test_folders.py",
        "models/test_live.py",
        "models/test_live_windows.py",
        "models/test_measuring.py",
        "models/test_minilm.py",
        "models/test_named_tokens.py",
        "models/test_pictures.py",
        "models/test_rank_heads.py",
        "models/test_sparse.py",
        "models/test_speech.py",
        "models/test_stages.py",
        "models/test_states.py",
        "models/test_t5.py",
        "models/test_template_limits.py",
        "models/test_trained.py",
        "models/test_unread.py",
        "models/test_voice.py",
        "models/test_windows.py",
        "ops/test_mul_mat_packed.py",
        "ops/test_mul_mat_packed_experts.py",
        "ops/test_mul_mat_scales.py",
        "opt/test_training.py",
        "scheduler/test_recorded_runs.py",
        "serve/test_adapters.py",
        "serve/test_bodies.py",
        "serve/test_calls.py",
        "serve/test_fields.py",
        "serve/test_llama_clients.py",
        "serve/test_operating.py",
        "serve/test_pictures.py",
        "serve/test_protocols.py",
        "serve/test_quick_requests.py",
        "serve/test_rank_heads.py",
        "serve/test_rerank.py",
        "serve/test_scores.py",
        "serve/test_transcriptions.py",
        "serve/test_vllm_clients.py",
        "serve/test_wrong_types.py",
    }
)
TESTS = Path(__file__).resolve().parent


@functools.cache
def is_of_either_loop(path: Path) -> bool:
    """Whether the file is in `EITHER_LOOP`; asked for each of its tests."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix() in EITHER_LOOP


def is_on_other_loop(
    path: Path, name: str, params: Mapping[str, object], *, marked: bool = False
) -> bool:
    """Whether a test that needs one loop is the one that its twin on the other makes needless.

    Args:
        path: its file.
        name: its node ID.
        params: the values of its parameters.
        marked: whether it has the mark ``either_loop``.
    """
    backend = params.get("anyio_backend")
    # If it is a name, the test asks for this loop alone.
    if not isinstance(backend, tuple) or not (marked or is_of_either_loop(path)):
        return False
    # A name is the same in every process; so is the loop without which it is left.
    name = name.replace("trio", "asyncio", 1)
    return bool(("asyncio", "trio")[zlib.crc32(name.encode()) % 2] != backend[0])


def pick(names: Sequence[str], n: int) -> set[str]:
    """``n`` of the names, the same ones in every process, spread over all of them."""
    return set(sorted(names, key=lambda name: zlib.crc32(name.encode()))[:n])


def rewrite_asserts(config: pytest.Config, files: Iterable[Path]) -> None:
    """Rewrite the assertions of test files that pytest has not rewritten and kept yet.

    pytest does so when it imports a file. In a new clone each worker would rewrite all files, 11 s
    of a core, because all import the same files at the same time.
    """
    if sys.dont_write_bytecode:
        return
    for file in files:
        folder = rewrite.get_cache_dir(file)
        kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if not kept.exists() and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)


class Turns:
    """A lock between processes: any number of tests at a time, or one that is alone.

    Args:
        path: of the file that is locked; the same in all processes of a run.
    """

    def __init__(self, path: Path) -> None:
        # `flock` locks belong to an open file, so each process opens the files itself.
        self._room = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._gate = os.open(f"{path}.gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Run the block beside other tests, or alone."""
        # A test that wants to be alone holds the gate while it waits for the room. Meanwhile no
        # other test gets through the gate, so that tests that come and go cannot keep the room
        # taken for ever.
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)


class Brief:
    """A pytest plugin of a worker: it sends one report for a test that passed, instead of three.

    pytest-xdist also sends a report of each setup and teardown, and that a test begins and ends.
    Nobody looks at them, and for 31,000 tests they took 20 s, in the worker and in the process that
    prints.
    """

    @staticmethod
    def serves(config: pytest.Config) -> bool:
        """Whether this process is a worker, and no option asks for durations or all reports."""
        option = config.option
        return (
            hasattr(config, "workerinput")
            and not option.durations
            and not option.xmlpath
            and option.verbose <= 0
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Replace pytest's own hook, which calls `runtestprotocol` too."""
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


class Workers:
    """A pytest plugin, registered by conftest.py in every process of a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._slow = 0
        self._never_made = 0
        self._turns: Turns | None = None
        self._watch = Watch(float(config.getini("test_seconds")))
        self._tests = 0

    def pytest_sessionstart(self) -> None:
        """In one of several processes: make the lock, and do a share of what all of them need."""
        given: dict[str, Any] | None = getattr(self._config, "workerinput", None)
        if given is None:
            return
        # Each worker has a folder of its own in the folder of the run.
        own: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._turns = Turns(own.parent / "turns")
        if self._config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            number = int(given["workerid"].removeprefix("gw"))
            files = sorted(TESTS.rglob("test_*.py"))
            rewrite_asserts(self._config, files[number :: given["workercount"]])

    def pytest_unconfigure(self) -> None:
        self._watch.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Runs a test with its setup and teardown: takes the lock and starts the watch."""
        self._tests += 1
        if self._tests % FREEZE == 0:
            # Without freezing, a full collection scans the reports of all earlier tests: 0.2 s
            # after 10,000.
            gc.collect()
            gc.freeze()
        if self._turns is None:
            return (yield from self._watched(item))
        with self._turns.turn(alone=item.get_closest_marker("alone") is not None):
            return (yield from self._watched(item))

    def _watched(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.get_closest_marker("timeout") is not None:
            self._watch.stop()
            return (yield)
        self._watch.begin()
        try:
            return (yield)
        finally:
            self._watch.end()

    @functools.cached_property
    def _named(self) -> set[Path]:
        """The files that the command line names."""
        named = {str(arg).partition("::")[0] for arg in self._config.args}
        return {Path(name).resolve() for name in named if name.endswith(".py")}

    @functools.cached_property
    def _slow_of(self) -> set[Path]:
        """The files whose slow tests are asked for beside the others."""
        return {Path(name).resolve() for name in self._config.option.slow_of}

    @functools.cached_property
    def _leaves_out(self) -> bool:
        """Whether there are tests that nobody asked for."""
        options = self._config.option
        return not options.all and "slow" not in options.markexpr

    @functools.cached_property
    def _shortens(self) -> bool:
        """Whether most cases of the long tests are left out."""
        options = self._config.option
        return self._leaves_out and not options.long and "long" not in options.markexpr

    def _cases_of(self, of: pytest.Item | pytest.Function) -> int | None:
        """How many cases of a long test are made; None: all of them."""
        mark = of.get_closest_marker("long")
        if mark is None or not self._shortens or of.path in self._named:
            return None
        return int(mark.kwargs.get("cases", 0))

    def _is_left_out(
        self, path: Path, name: str, params: Mapping[str, object], *, slow: bool, marked: bool
    ) -> bool:
        if path in self._named:
            one_loop = getattr(self._config.option, "one_loop", False)
            return one_loop and is_on_other_loop(path, name, params, marked=marked)
        if slow:
            return path not in self._slow_of
        return is_on_other_loop(path, name, params, marked=marked)

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make no tests that would be left out: 22,000 of 61,000, 1.7 s in each process.

        One of a function remains, since pytest would call a function without cases as it is.
        """
        calls = metafunc._calls
        if len(calls) < 2 or not self._leaves_out:
            return
        of = metafunc.definition
        slow = of.get_closest_marker("slow") is not None
        marked = of.get_closest_marker("either_loop") is not None
        kept = [
            call
            for call in calls
            if not self._is_left_out(
                of.path,
                f"{of.nodeid}[{call.id}]",
                call.params,
                slow=slow or any(mark.name == "slow" for mark in call.marks),
                marked=marked,
            )
        ]
        cases = self._cases_of(of)
        if cases is not None:
            picked = pick([call.id for call in kept], cases)
            kept = [call for call in kept if call.id in picked]
        kept = kept or calls[:1]
        self._never_made += len(calls) - len(kept)
        calls[:] = kept

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the slow and long tests that nobody asked for, as far as they were made."""
        if not self._leaves_out:
            return

        def is_left_out(item: pytest.Item) -> bool:
            if self._cases_of(item) == 0:
                return True
            call = getattr(item, "callspec", None)
            slow = item.get_closest_marker("slow") is not None
            marked = item.get_closest_marker("either_loop") is not None
            params = call.params if call is not None else {}
            return self._is_left_out(item.path, item.nodeid, params, slow=slow, marked=marked)

        left = [item for item in items if is_left_out(item)]
        self._slow = len(left) + self._never_made
        if self._slow:
            # Of those that were never made only the number counts: as collected, then as left out.
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter._numcollected += self._never_made
            self._config.hook.pytest_deselected(items=left + items[:1] * self._never_made)
        if left:
            out = set(left)
            items[:] = [item for item in items if item not in out]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a worker: report how many tests it left out to the process that prints the summary."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["slow"] = self._slow

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a worker's count. Each worker collects all tests, so all counts are equal."""
        self._slow = max(self._slow, getattr(node, "workeroutput", {}).get("slow", 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._slow:
            terminalreporter.write_line(
                f"{self._slow} tests left out, slow ones, most cases of long ones, and ones on a "
                "second loop; make test-all (pytest --all) runs them"
            )
