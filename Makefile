# Each target sets up what it needs in .venv. Only install-browser touches anything else on the machine.
#
#   make chat MODEL=path/to/weights ARGS="--temperature 0.7"
#   make serve MODEL=path/to/weights ARGS="--port 9000"
#   make test PYTEST_ARGS="-k radix -x"
#   make install PYTHON=python3.12
#   make fuzz MINUTES=60

PYTHON ?= python3
MODEL ?=
ARGS ?=
PYTEST_ARGS ?=
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
HOST_VENV := .venv-host
HOST_BIN := $(HOST_VENV)/bin
INSTALL := -m pip --disable-pip-version-check install --constraint constraints.txt

# A stamp is touched when its recipe has ended well, so an interrupted install is simply done again.
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
HOST := $(HOST_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install install-dev install-browser chat serve test test-host test-slow test-gpu fuzz mutate lint format
.PHONY: docs bench clean
.DELETE_ON_ERROR:

help: ## what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(RUNTIME) ## the engine and what it needs to run, in .venv

install-dev: $(DEV) ## the same, and what the tests and linters need

install-browser: ## Chromium from the system's packages, for the tests of the dashboard
	@.ci/install-browser

chat: $(RUNTIME) ## talk to a model; MODEL=directory, or nothing for the built-in one
	@$(BIN)/holdfast chat $(if $(MODEL),"$(MODEL)") $(ARGS)

serve: $(RUNTIME) ## serve a model over HTTP; MODEL=directory, or nothing for the built-in one
	@$(BIN)/holdfast serve $(if $(MODEL),"$(MODEL)") $(ARGS)

test: lint test-host $(DEV) ## style, types and the fast tests, on all cores
	$(BIN)/python -m pytest --ignore=tests/host --numprocesses auto --dist loadfile $(PYTEST_ARGS)

test-host: $(HOST) ## the host column's tests, in an environment without torch
	@$(HOST_BIN)/python -c "import importlib.util as u, sys; \
	  sys.exit('$(HOST_VENV) has torch: remove it and run again' if u.find_spec('torch') else 0)"
	$(HOST_BIN)/python -m pytest tests/host $(PYTEST_ARGS)

test-slow: $(DEV) ## the full matrices, on all cores
	$(BIN)/python -m pytest -m slow --numprocesses auto --dist loadfile $(PYTEST_ARGS)

test-gpu: $(DEV) ## operations, every family and the sanitizer on a CUDA device
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

fuzz: $(DEV) ## random traffic over the whole engine, for MINUTES=10
	$(BIN)/python -m tests.fuzz run $(MINUTES)

mutate: $(DEV) ## does a test notice every small change of the code that owns state? writes docs/mutation.md
	$(BIN)/python $(INSTALL) --editable '.[mutation]'
	$(BIN)/python -m tests.mutation $(ARGS)

lint: $(DEV) ## style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(RUNTIME) ## write docs/models.md from the registry
	$(BIN)/python docs/models.py

bench: $(DEV) ## every script in benchmarks/
	@set -e; found=; for script in benchmarks/*.py; do \
	  [ -f "$$script" ] || continue; found=yes; echo "== $$script"; $(BIN)/python "$$script" $(ARGS); \
	done; [ -n "$$found" ] || echo "There are no benchmarks yet: put scripts in benchmarks/, each prints a table."

clean: ## remove the environments, caches and build outputs
	rm -rf $(VENV) $(HOST_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created $(HOST_VENV)/.created:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" || \
	  { echo "Holdfast needs Python 3.11 to 3.13; name one with PYTHON=, as in: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

# Torch goes first and alone, so that no other package's wishes choose its build.
$(RUNTIME): pyproject.toml constraints.txt | $(VENV)/.created
	$(BIN)/python $(INSTALL) torch
	$(BIN)/python $(INSTALL) --editable .
	@if $(BIN)/python -m pip --disable-pip-version-check list | grep -qi '^nvidia'; then \
	  echo "Note: the package index gave torch's CUDA build. For the small CPU build, run make clean"; \
	  echo "and install again with PIP_EXTRA_INDEX_URL set to an index of CPU wheels."; fi
	@touch $@

$(DEV): $(RUNTIME)
	$(BIN)/python $(INSTALL) --editable '.[test]'
	@touch $@

$(HOST): constraints.txt | $(HOST_VENV)/.created
	$(HOST_BIN)/python $(INSTALL) pytest hypothesis
	@touch $@
