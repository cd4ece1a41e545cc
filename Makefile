# The two commands of the README are `make demo` and `make test`; both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check docs bench reproduce clean

demo: $(STAMP)
	$(BIN)/decor compare --task breast-cancer --users 16 --epsilon 1,3,10,30 --topology ring,torus \
	    --gossip-rounds 4 --final-gossip-rounds 16 --seeds 24 --output demo --overwrite

test: $(STAMP)-test
	$(BIN)/python -m pytest

check: $(STAMP)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python docs/make_figures.py

bench: $(STAMP)
	$(BIN)/python benchmarks/accountant.py | tee benchmarks/accountant.jsonl
	$(BIN)/python benchmarks/simulator.py | tee benchmarks/simulator.jsonl

# everything in docs/reproduction.md: an hour and a half on two cores; DECOR_DATA names the folder of a9a and mnist
STUDIES := least-squares a9a mnist accountant irregular adversaries scaling gossip
reproduce: $(STAMP)
	for study in $(STUDIES); do $(BIN)/decor reproduce $$study --output reproduction/$$study --overwrite || exit 1; done
	$(BIN)/python reproductions/publish.py $(addprefix reproduction/,$(STUDIES))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("DECOR needs Python 3.11 or newer; say make PYTHON=python3.11 (or newer)" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing DECOR and its libraries (torch is the largest) into $(VENV): a few minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[train]'
	touch $@

$(STAMP)-test: $(STAMP)
	@echo "installing what the tests need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@
