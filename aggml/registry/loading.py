"""Loading and unloading of plug-ins: one, or the best of all that are found.

Here: score, version, registration, the search path and the environment (AGGML_BACKEND_PATH,
AGGML_BACKEND_DIRS, AGGML_DISABLE_BACKENDS are read here alone). Not here: listing and importing
(candidates.py), checks of a family (table.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aggml.backend.family import Family
from aggml.errors import AggmlError, BackendLoadError, InvalidHandle
from aggml.process.foreign import describe, show, text_of
from aggml.process.paths import user_path
from aggml.registry import candidates
from aggml.registry.report import LoadReport, LoadResult
from aggml.registry.table import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from aggml.registry.candidates import Candidate

__all__ = ["discover", "load", "load_all", "load_report", "search_path", "unload"]

_modules: dict[int, object] = {}  # id of a family -> the module that gave it
_discovered = 0  # the last stage that `discover` has finished


# -- one candidate


def _refuse(
    candidate: Candidate, reason: str, cause: BaseException | None = None
) -> BackendLoadError:
    error = BackendLoadError(f"[load] {candidate.source}: {reason}")
    error.__cause__ = cause
    return error


def _import(candidate: Candidate) -> Any:  # noqa: ANN401 - a module, or what an entry point names
    try:
        return candidate.open()
    except (BackendLoadError, KeyboardInterrupt):
        raise
    except BaseException as error:  # its code may raise anything
        raise _refuse(candidate, describe(error), error) from error


def _score(candidate: Candidate, module: object) -> int | None:
    """The score that the plug-in gives itself; None if it gives none."""
    ask = getattr(module, "aggml_backend_score", None)
    if ask is None:
        return None
    try:
        score = ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _refuse(candidate, f"aggml_backend_score: {show(error)}", error) from error
    if not isinstance(score, int):
        raise _refuse(candidate, f"aggml_backend_score returned {show(score)}, not an integer")
    return score


def _register(candidate: Candidate, module: object) -> Family:
    init = getattr(module, "aggml_backend_init", None)
    if init is None:
        raise _refuse(candidate, "it exports no aggml_backend_init")
    try:
        family = init()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        told = text_of(error) if issubclass(type(error), AggmlError) else ""
        raise _refuse(candidate, told or describe(error), error) from error
    if not isinstance(family, Family):
        raise _refuse(candidate, f"aggml_backend_init returned {show(family)}, not a Family")
    try:
        table.add_family(family, candidate.rank)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # its `devices` may raise, too
        raise _refuse(candidate, text_of(error), error) from error
    table.sources[candidate.key] = family
    _modules[id(family)] = module
    return family


def _load(candidate: Candidate) -> LoadResult:
    """Load one candidate and record the result."""
    with table.lock:
        known = table.sources.get(candidate.key)
        if known is not None:
            before = table.results.get(candidate.key)
            return before or _note(candidate, "loaded", family=known)
        module: object = None
        score = None
        try:
            module = _import(candidate)
            score = _score(candidate, module)
            if score == 0:
                raise _refuse(candidate, "not supported on this system (its score is 0)")
            family = _register(candidate, module)
        except BackendLoadError as error:
            candidates.forget(module)
            reason = str(error).removeprefix("[load] ").removeprefix(f"{candidate.source}: ")
            return _note(candidate, "failed", reason, score=score, error=error)
        return _note(candidate, "loaded", score=score, family=family)


def _note(
    candidate: Candidate,
    status: Literal["loaded", "skipped", "failed"],
    reason: str = "",
    *,
    score: int | None = None,
    family: Family | None = None,
    error: BackendLoadError | None = None,
) -> LoadResult:
    name = candidate.name if family is None else family.name
    result = LoadResult(name, candidate.source, status, reason, score, family, error)
    table.results[candidate.key] = result
    return result


def load(source: str | os.PathLike[str] | ModuleType) -> Family:
    """Load one plug-in and register its family (ggml_backend_load).

    Loading the same file or module again gives the same family.

    Args:
        source: a ``.py`` file, an extension module, the folder of a package, the dotted name of a
            module, or a module. It exports ``aggml_backend_init() -> Family`` and, if it may not
            suit this machine, ``aggml_backend_score() -> int``, 0 for "does not run here".

    Raises:
        BackendLoadError: the plug-in is missing, does not run here, exports no such function,
            raised an exception (kept as the cause), or was written for another `API_VERSION`.
    """
    if not isinstance(source, str | os.PathLike | type(os)):
        raise InvalidHandle(f"[load] {source!r} is no path, no name of a module and no module")
    result = _load(candidates.of_source(source))
    if result.error is not None:
        raise result.error
    assert result.family is not None
    return result.family


# -- the best of many


def _disabled_names() -> set[str]:
    names = os.environ.get("AGGML_DISABLE_BACKENDS", "").split(",")
    return {name.strip().lower() for name in names} - {""}


def _score_variants(variants: Iterable[Candidate]) -> Iterator[tuple[int, Candidate] | LoadResult]:
    """The score of each candidate, or the reason why it cannot be used."""
    for variant in variants:
        module: object = None
        try:
            module = _import(variant)
            score = _score(variant, module)
        except BackendLoadError as error:
            yield _note(variant, "failed", str(error.__cause__ or error), error=error)
            continue
        finally:
            candidates.forget(module)  # ggml closes the library, too; the best one is opened again
        if score is None:
            yield _note(variant, "skipped", "a variant, but it exports no aggml_backend_score")
        elif score <= 0:
            yield _note(variant, "skipped", "not supported on this system", score=score)
        else:
            yield score, variant


def _load_best(found: list[Candidate]) -> Iterator[LoadResult]:
    """Load the best variant of one family; if no variant loads, the first plain plug-in."""
    name = found[0].name
    if name in _disabled_names():
        for candidate in found:
            yield _note(candidate, "skipped", "switched off by AGGML_DISABLE_BACKENDS")
        return
    mine = [candidate for candidate in found if candidate.key in table.sources]
    queue: list[tuple[int | None, Candidate]] = [(None, candidate) for candidate in mine]
    if not mine:
        scored: list[tuple[int, Candidate]] = []
        for entry in _score_variants(c for c in found if c.variant):
            if isinstance(entry, LoadResult):
                yield entry
            else:
                scored.append(entry)
        scored.sort(key=lambda entry: -entry[0])  # stable: the first of equals
        queue += scored
    queue += [(None, c) for c in found if not c.variant and c not in mine]
    chosen: Family | None = next((f for f in table.families if f.name.lower() == name), None)
    for score, candidate in queue:
        if chosen is not None and candidate.key not in table.sources:
            why = f"{chosen.name} is loaded already"
            yield _note(candidate, "skipped", why, score=score)
            continue
        result = _load(candidate)
        chosen = result.family or chosen
        yield result


def _load_groups(found: Iterable[Candidate]) -> Iterator[LoadResult]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in found:
        groups.setdefault(candidate.name, []).append(candidate)
    for group in groups.values():
        yield from _load_best(group)


def search_path() -> list[Path]:
    """The folders in which `load_all` looks: those of AGGML_BACKEND_DIRS, then PREFIX/lib/aggml.

    The current folder is not among them: files that lie there need not be trustworthy.
    """
    given = os.environ.get("AGGML_BACKEND_DIRS", "").split(os.pathsep)
    return [*(user_path(folder) for folder in given if folder), Path(sys.prefix, "lib", "aggml")]


def discover(stage: int) -> list[LoadResult]:
    """Load once, up to a stage: 1 the CPU, 2 all built-in families, 3 entry points."""
    global _discovered
    results: list[LoadResult] = []
    with table.lock:
        while _discovered < stage:
            _discovered += 1  # first: a plug-in may look for devices while it is loaded
            if _discovered < 3:
                found = [
                    c for c in candidates.built_ins() if (c.name == "cpu") == (_discovered == 1)
                ]
            else:
                found = candidates.entry_points()
            results += _load_groups(found)
    return results


def load_all(path: str | os.PathLike[str] | None = None) -> LoadReport:
    """Load all plug-ins found (ggml_backend_load_all); a failure is reported, not raised.

    Built-in families and entry points of the group "aggml.backends", then ``aggml_NAME.py``,
    ``aggml_NAME.*.so`` and folders ``aggml_NAME`` of the search path, then the file that
    AGGML_BACKEND_PATH names. ``aggml_NAME-VARIANT.*`` are variants of one family: the variant with
    the highest score is loaded, from any folder, or the plain plug-in if no variant can run.
    Families named in AGGML_DISABLE_BACKENDS (comma-separated) are skipped.

    It imports code and may start drivers: call it before a loop runs, or in a thread.

    Args:
        path: look in this folder only, instead of the search path.

    Returns:
        The result of each candidate.

    Raises:
        InvalidHandle: ``path`` is no path.
    """
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InvalidHandle(f"[load_all] {path!r} is no path")
    with table.lock:
        results: dict[str, LoadResult] = {}
        if path is None:
            discover(3)
            results.update(table.results)
            folders = search_path()
        else:
            folders = [user_path(path)]
            if not folders[0].is_dir():
                result = LoadResult("", str(path), "skipped", "there is no such folder")
                results[str(path)] = result
        found = [candidate for folder in folders for candidate in candidates.files_of(folder)]
        for result in _load_groups(found):
            results[result.source] = result
        if single := os.environ.get("AGGML_BACKEND_PATH"):
            try:
                results[single] = _load(candidates.of_source(Path(single)))
            except BackendLoadError as error:
                reason = "AGGML_BACKEND_PATH: " + str(error).removeprefix("[load] ")
                table.results[single] = results[single] = LoadResult(
                    Path(single).stem, single, "failed", reason, error=error
                )
        return LoadReport(results.values())


def load_report() -> LoadReport:
    """The latest result of every candidate so far; the CPU is always among them."""
    with table.lock:
        discover(1)
        return LoadReport(table.results.values())


def unload(family: Family | str) -> bool:
    """Remove a family and its devices (ggml_backend_unload).

    Its code stays in memory as long as something refers to it; a file is read anew by the next
    `load`.

    Args:
        family: the object, or its name (case ignored).

    Returns:
        False if there is no such family.

    Raises:
        InvalidState: there are open backends, buffers that are not closed, or events of its
            devices; nothing is changed.
    """
    if not isinstance(family, Family | str):
        raise InvalidHandle(f"[unload] {family!r} is neither a Family nor a name")
    with table.lock:
        for entry in table.entries:
            known = entry.family
            if known is None:
                continue
            if known is family or (
                isinstance(family, str) and known.name.lower() == family.lower()
            ):
                break
        else:
            return False
        table.remove(entry, "unload")
        for key in [key for key, result in table.results.items() if result.family is known]:
            old = table.results[key]
            table.results[key] = LoadResult(
                old.name, old.source, "skipped", "it was unloaded", old.score
            )
        candidates.forget(_modules.pop(id(known), None))
    known.close()
    return True
