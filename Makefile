# Two commands: `make run` serves a model, `make test` passes every check and proves every behaviour once. Both set up
# everything first. `make test-full` passes the grids, trainings and long runs that `make test` leaves out.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Neighbouring tests stay in one process, which makes what they share once; a process that is done takes from the others.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
INSTALLED := $(VENV)/.installed

# A directory or hub name; without one, the default model in the box.
MODEL ?=

# Processes that tests start find this package compiled, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-quick test-full test-gpu soak check bench bench-gpu sanitize clean

run: $(INSTALLED)
	$(BIN)/archerfish serve $(MODEL)

# The check takes the processor time that the tests leave, while they wait for something.
test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 check test-quick

test-quick: $(INSTALLED)
	$(PYTEST)

test-full: $(INSTALLED)
	$(PYTEST) --lane full

# A service under everything at once, kills included, with every answer known beforehand. SOAK_SECONDS=600 is the default.
soak: $(INSTALLED)
	$(BIN)/python -m tests.attack.soak

check: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" nice scripts/check

# The thread team under ThreadSanitizer; then the native kernels' tests, and engines of the smallest sizes, with
# AddressSanitizer and UndefinedBehaviorSanitizer, which see only in software what matrix tiles load. Needs CMake and gcc.
sanitize: $(INSTALLED)
	cmake -S csrc -B build/thread-stress -DTHREAD_STRESS=ON -DWARNINGS_AS_ERRORS=ON
	cmake --build build/thread-stress
	build/thread-stress/team_stress
	cmake -S csrc -B build/sanitize -DSANITIZE=ON -DTILES_IN_SOFTWARE=ON -DWARNINGS_AS_ERRORS=ON
	cmake --build build/sanitize
	NATIVE_ARCHERFISH=$(CURDIR)/build/sanitize/_kernels.so ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	$(PYTEST) tests/ops/cpu tests/execution/backends/test_cpu_program_drafts.py \
		tests/end_to_end/test_sizes.py

# On a machine with a GPU, with any Python that has torch: kernels' tests compiled instead of interpreted, models through
# graphs; and the table of speeds, also as JSON. Both run this checkout without installing anything.
GPU_PYTHON ?= python3
test-gpu bench-gpu: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

test-gpu:
	$(GPU_PYTHON) -m pytest --lane all tests/ops/triton tests/execution/backends/cuda/test_graphs.py tests/end_to_end/test_triton*.py

bench-gpu:
	$(GPU_PYTHON) benchmarks/gpu/run.py

bench: $(INSTALLED)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

$(INSTALLED): pyproject.toml $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,check]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
