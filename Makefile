# `make test` and `make demo` work on a bare machine: Python 3.11+ and make (without a C++ compiler, tests of inductor skip).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
KERNELS := .venv/.kernels

.PHONY: test demo bench lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Triton interprets the kernels of the fused engine on the CPU. It stands apart: torch's compiler would take it for a GPU's.
$(KERNELS): $(READY)
	-$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --target .venv/kernels triton
	touch $@

# One thread for each process that a test starts: as many as there are cores are at work already.
test: export OMP_NUM_THREADS = 1
test: lint $(KERNELS)
	$(BIN)/pytest -n 2 --dist loadfile
	TRITON_INTERPRET=1 PYTHONPATH=.venv/kernels $(BIN)/pytest -n 2 --maxschedchunk 1 tests/kernels

demo: $(READY)
	$(BIN)/bayesnorm demo

.venv/.peers: benchmarks/peers.txt $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $@

bench: .venv/.peers
	$(BIN)/python benchmarks/cpu.py --json results/cpu.json

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
