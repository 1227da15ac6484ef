# Two commands on a fresh machine: `make demo` and `make test`. Each prepares .venv itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install results demo test lint types pytest test-slow docs test-browser bench fuzz clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/sheafdeq/ops/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: install
	$(BIN)/sheafdeq demo

test: lint types pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: install
	$(BIN)/mypy

pytest: install
	$(BIN)/python -m pytest -n 2

test-slow: install
	$(BIN)/python -m pytest -n 2 -m slow

results: install  # RESULTS.md, its picture and the README's results section, from the records
	$(BIN)/sheafdeq tables results --out RESULTS.md --figures docs/figures

docs: install  # the documentation site in build/docs; warnings are errors
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -b html -d build/docs-trees docs build/docs

test-browser: install  # report and explorer in chromium
	.ci/browser
	$(BIN)/python -m pytest tests/browser -m 'slow or not slow'

bench: install
	$(BIN)/sheafdeq bench

fuzz: install
	$(BIN)/python -m sheafdeq.fuzzing --cases 10000 --seed 0 --out results/fuzz.json

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
