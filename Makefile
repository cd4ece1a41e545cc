# The two commands of the README are `make demo` and `make test`; both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# an environment of its own, because other packages bring much
DOORS := .venv-doors

# without bytecode every process compiles all modules, and pytest rewrites all tests, anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-peers test test-doors test-python check chaos mutations stats docs bench reproduce dist clean

DEMO := compare --task breast-cancer --users 16 --epsilon 1,3,10,30 --topology ring,torus \
    --final-gossip-rounds 16 --seeds 24 --output demo --overwrite
demo: $(STAMP)
	$(BIN)/decor $(DEMO)

# eight institutions on this machine; one is killed in the middle, and comes back
demo-peers: $(STAMP)
	rm -rf demo-peers
	$(BIN)/decor federation new --task breast-cancer --users 8 --epsilon 10 --output demo-peers
	$(BIN)/decor up demo-peers/federation.toml --crash ulm@20
	$(BIN)/decor ledger demo-peers/run/ulm.ledger

test: $(STAMP)-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# what works inside other packages, and with their models
test-doors: $(DOORS)/.installed
	$(DOORS)/bin/python -m pytest tests/doors tests/learning/test_lora.py \
	    "tests/test_docs.py::test_the_python_of_a_page_runs_from_top_to_bottom[doors.md]"

# graphs, noise, accounting and the network protocol on another Python, without torch:
# make test-python PYTHON=python3.13
LIGHT := build/$(notdir $(PYTHON))
test-python:
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peer,tables]' \
	    pytest pytest-xdist hypothesis mpmath dp-accounting prometheus-client
	$(LIGHT)/bin/decor plan --epsilon 3
	$(LIGHT)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile \
	    tests/graph tests/noise tests/privacy tests/net

check: $(STAMP)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# kills users and cuts their connections for ten minutes, then puts back, loses, doubles and swaps their ledgers
chaos: $(STAMP)-test
	$(BIN)/python tests/federation/chaos/chaos.py --minutes 10 >> benchmarks/chaos.jsonl
	$(BIN)/python tests/federation/chaos/chaos.py --detect 20 >> benchmarks/chaos.jsonl

# puts faults into copies of the source, and writes docs/mutations.md: who noticed them; ten minutes on two cores
mutations: $(DOORS)/.installed
	$(DOORS)/bin/python tests/mutations/run.py

# figures about the code base: size, comments, undocumented arguments, names; --list names them
stats: $(STAMP)-test
	$(BIN)/python tools/stats.py

# the site: pictures from real runs, then every page; a minute on two cores after installation
docs: $(STAMP)-docs
	$(BIN)/python docs/make_figures.py
	$(BIN)/python docs/make_notebooks.py
	$(BIN)/python -m sphinx -b html -W --keep-going -q -E -d build/doctrees docs site
	@echo "open $(CURDIR)/site/index.html"

bench: $(STAMP)
	$(BIN)/python benchmarks/accountant.py | tee benchmarks/accountant.jsonl
	$(BIN)/python benchmarks/own_noise.py | tee benchmarks/own_noise.jsonl
	$(BIN)/python benchmarks/composition.py | tee benchmarks/composition.jsonl
	$(BIN)/python benchmarks/simulator.py | tee benchmarks/simulator.jsonl
	$(BIN)/python benchmarks/private.py | tee benchmarks/private.jsonl
	$(BIN)/python benchmarks/own_module.py | tee benchmarks/own_module.jsonl
	$(BIN)/python benchmarks/predict.py | tee benchmarks/predict.jsonl
	$(BIN)/python benchmarks/models.py | tee benchmarks/models.jsonl
	$(BIN)/python benchmarks/noise.py | tee benchmarks/noise.jsonl
	$(BIN)/python benchmarks/peers.py | tee benchmarks/peers.jsonl
	$(BIN)/python benchmarks/process_group.py | tee benchmarks/process_group.jsonl
	$(BIN)/python benchmarks/beside.py | tee benchmarks/beside.jsonl
	$(BIN)/python benchmarks/audit.py | tee benchmarks/audit.jsonl
	$(BIN)/python benchmarks/ui.py | tee benchmarks/ui.jsonl
	$(BIN)/python benchmarks/probe.py | tee benchmarks/probe.jsonl
	$(BIN)/python benchmarks/relay.py | tee benchmarks/relay.jsonl

# everything in docs/reproduction.md: an hour and three quarters on two cores; DECOR_DATA names the folder of a9a, mnist and fashion-mnist
STUDIES := least-squares a9a mnist accountant irregular adversaries scaling gossip records
reproduce: $(STAMP)
	for study in $(STUDIES); do $(BIN)/decor reproduce $$study --output reproduction/$$study --overwrite || exit 1; done
	$(BIN)/python reproductions/publish.py $(addprefix reproduction/,$(STUDIES))

# dist/ with wheel and sdist; each is installed into an empty environment, where the demo runs
dist: $(STAMP)-test
	rm -rf dist
	$(BIN)/python -m hatchling build
	for file in dist/*.whl dist/*.tar.gz; do \
	    rm -rf build/empty && $(PYTHON) -m venv build/empty && \
	    build/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$file[all]" && \
	    (cd build/empty && bin/decor --version && bin/decor $(DEMO)) || exit 1; \
	done

clean:
	rm -rf $(VENV) $(DOORS) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo demo-peers site build dist

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("DECOR needs Python 3.11 or newer; say make PYTHON=python3.11 (or newer)" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing DECOR and its libraries (torch is the largest) into $(VENV): a few minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(STAMP)-test: $(STAMP)
	@echo "installing what the tests need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

$(DOORS)/.installed: pyproject.toml constraints.txt
	test -x $(DOORS)/bin/python || $(PYTHON) -m venv $(DOORS)
	@echo "installing DECOR, its tests and other packages into $(DOORS): some minutes the first time"
	$(DOORS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,doors]'
	touch $@

$(STAMP)-docs: $(STAMP)
	@echo "installing what the documentation needs"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
