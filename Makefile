# `make test` and `make demo` work on a bare machine: Python 3.11+ and make (without a C++ compiler, tests of inductor skip).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

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

test: lint
	$(BIN)/pytest -n 2 --dist loadfile

demo: $(READY)
	$(BIN)/bayesnorm demo

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py --json results/overhead.json

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
