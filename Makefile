# The two commands are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
STAMP := $(VENV)/.installed

.PHONY: help setup build demo test test-gpu bench check lint format clean
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

test: lint  ## the whole suite, as CI runs it
	$(BIN)/pytest -q

check: lint  ## linters, types, import rules, fast tests
	$(BIN)/pytest -q -m "not (gpu or slow or multiprocess)"

lint: setup  ## linters, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' '*.cu' | xargs -r $(BIN)/clang-format --dry-run --Werror
	git ls-files '*.sh' .ci/run | xargs -r $(BIN)/shellcheck
	$(BIN)/mypy
	$(BIN)/lint-imports

test-gpu: setup  ## the tests that need a CUDA device
	$(BIN)/pytest -q -m gpu tests

bench: setup  ## measure everything, fill README's tables (about ten minutes, nothing else running)
	$(BIN)/python -m benchmark.preprocessing --rows 4000000
	$(BIN)/python -m benchmark.criteo_sample
	$(BIN)/python -m benchmark.inference
	$(BIN)/python -m benchmark.micro.loader
	$(BIN)/python -m benchmark.report README.md

format:  ## rewrite sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' | xargs -r $(BIN)/clang-format -i

clean:  ## remove what make built (datasets and checkpoints stay)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info

# image steps: what each RUN line of the Dockerfile does, on this machine
STEP := PYTHON=$(abspath $(BIN)/python) docker

.PHONY: image-system image-python image-apex image-build smoke golden

image-system:  ## system packages of the image
	docker/install_system.sh

image-python: $(STAMP)  ## Python packages of the image, torch left alone
	$(STEP)/install_python.sh

image-apex: $(STAMP)  ## NVIDIA's apex of the image, with WITH_APEX=1
	$(STEP)/install_apex.sh

image-build: $(STAMP)  ## native code of the image
	$(STEP)/build_extension.sh

smoke: setup  ## raw logs to latencies in under a minute
	$(STEP)/smoke.sh

golden: setup  ## rewrite tests/golden; review the diff
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/dlrm/test_golden_losses.py tests/repo/test_flag_surface.py
