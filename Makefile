# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all bench style lint docs release clean

help: ## show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP) ## set up, train the papers' network with and without BatchNorm, analyze both, write a report to open
	$(BIN)/normscope demo --out normscope-demo

# Detailed messages of assertions take half of the time it takes to collect the tests: only what failed is run with them.
PYTEST = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(STAMP) style ## set up, lint and run the tests (mypy is one of them); of the long ones a part that changes daily
	$(PYTEST) -n 2 --dist worksteal --assert plain || { $(PYTEST) --last-failed --last-failed-no-failures none; false; }

test-all: $(STAMP) style ## the same with every long test whole (hours)
	NORMSCOPE_ALL=1 $(PYTEST) -n 2 --dist worksteal --assert plain -m '' || { NORMSCOPE_ALL=1 $(PYTEST) --last-failed --last-failed-no-failures none -m ''; false; }

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style ## ruff and mypy
	$(BIN)/mypy

docs: $(STAMP) ## build the documentation into docs/_build, run its tutorials
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

release: $(STAMP) ## build wheel and sdist into dist, check them, install the wheel into a fresh environment and use it
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd dist && venv/bin/normscope --version && venv/bin/normscope analyze zoo:cnn --fast --out used
	rm -rf dist/venv dist/used

bench: $(STAMP) ## measure speed and accuracy against the peers (several minutes)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks

clean: ## remove the environment and what the demo wrote
	rm -rf $(VENV) normscope-demo docs/_build dist
