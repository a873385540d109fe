"""Each lock and each state word of the native module has its rule for the child of a fork.

The table is in native/runtime/fork.c. Here: that it names all locks and state words, nothing else.
Not
here: that the rules are kept (tests/native/runtime_fork*.c, test_processes.py).
"""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "aggml" / "native"
RULES = {"fresh", "parent", "marked", "word", "gil", "thread"}

#: The beginning of a C or C++ declaration of a variable that several threads use.
SHARED = re.compile(
    r"""^\s*(?:static\s|_Alignas\(64\)\s|const\s)*
    (?:pthread_(?:mutex|cond|rwlock|once)_t | pthread_t | atomic_\w+
       | _Atomic\((?:[^()]|\([^()]*\))*\) | std::(?:mutex|condition_variable|once_flag|thread)
       | std::atomic(?:<[^;]*>)? | std::atomic_\w+)
    \s(?P<names>[*\w\#][^;(){}]*?)\s*(?:;|=|\{)""",
    re.MULTILINE | re.VERBOSE,
)
#: A static variable, in a file or in a function.
STATIC = re.compile(
    r"^[ \t]*static (?!inline\b|const\b|constexpr\b)(?P<type>[^(){};=\n]*?)"
    r"(?P<names>[*\w#]+(?:\[[^;\n]*?\])?(?:, *\w+)*)(?: = [^\n]*|\{[^\n]*\})?;",
    re.MULTILINE,
)


def words_of(path: Path) -> set[str]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    text = text.replace("\\\n", "\n")
    found: set[str] = set()
    for match in [*SHARED.finditer(text), *STATIC.finditer(text)]:
        if "*const" in match.group(0):
            continue
        for name in match["names"].split(","):
            bare = re.sub(r"\[.*|=.*", "", name).replace("*", " ").split()
            if bare:
                found.add(bare[-1])
    return found


def table() -> dict[str, dict[str, str]]:
    rules: dict[str, dict[str, str]] = {}
    for row in re.findall(r"^ \* \| ([\w/.]+) +\| (.*?) +\| (\w+) +\|$", fork_c(), re.MULTILINE):
        file, words, rule = row
        if file == "file":
            continue
        for word in words.split():
            assert rules.setdefault(file, {}).setdefault(word, rule) == rule, (file, word)
    return rules


def fork_c() -> str:
    return (NATIVE / "runtime" / "fork.c").read_text()


def test_every_word_has_a_rule() -> None:
    known = {file: set(words) for file, words in table().items()}
    sources = [p for p in NATIVE.rglob("*") if p.suffix in {".c", ".h", ".cpp"}]
    found = {str(path.relative_to(NATIVE)): words_of(path) for path in sources}
    found = {file: words for file, words in found.items() if words}
    missing = {file: words - known.get(file, set()) for file, words in found.items()}
    gone = {file: words - found.get(file, set()) for file, words in known.items()}
    assert {file: words for file, words in missing.items() if words} == {}, (
        "give each a rule in native/runtime/fork.c"
    )
    assert {file: words for file, words in gone.items() if words} == {}, "not in the sources"


def test_the_rules_are_those_that_are_told() -> None:
    used = {rule for words in table().values() for rule in words.values()}
    assert used == RULES
    for rule in RULES:
        assert re.search(rf"^ \*   {rule} +\w", fork_c(), re.MULTILINE), rule


def test_locks_of_the_process_stand_in_one_place() -> None:
    """in_child() does not know a lock that is declared elsewhere in a file."""
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix not in {".c", ".h", ".cpp"}:
            continue
        text = path.read_text()
        assert not re.search(
            r"^(static )?pthread_mutex_t (?!\*)(?!ag_locks)", text, re.MULTILINE
        ), path
        assert "std::mutex" not in text, path
