# The two commands are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
STAMP := $(VENV)/.installed

.PHONY: help setup build demo test check format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

setup: $(STAMP) build  ## environment in .venv, native code built

build: $(STAMP)  ## rebuild the native code in place
	@$(BIN)/python setup.py --quiet build_ext --inplace

demo: setup  ## raw click logs to a trained DLRM, its AUC and its latency
	$(BIN)/python -m benchmark.demo --folder $(DEMO_DIR)

test: setup  ## the whole suite
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q

check: setup  ## linters, types, import rules, fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' '*.cu' | xargs -r $(BIN)/clang-format --dry-run --Werror
	git ls-files '*.sh' .ci/run | xargs -r $(BIN)/shellcheck
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not (gpu or slow or multiprocess)"

format:  ## rewrite sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' | xargs -r $(BIN)/clang-format -i

clean:  ## remove what make built (datasets and checkpoints stay)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info
