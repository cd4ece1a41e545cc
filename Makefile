# The two commands of the README are `make demo` and `make test`; both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check docs bench clean

demo: $(STAMP)
	$(BIN)/decor plan --topology ring --users 16 --epsilon 3 --delta 1e-5 --steps 1000 --clip 1 --adversary eavesdropper --plot plan.png

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

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis plan.png

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("DECOR needs Python 3.11 or newer; say make PYTHON=python3.11 (or newer)" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing DECOR and its libraries into $(VENV): a minute or so"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(STAMP)-test: $(STAMP)
	@echo "installing what the tests need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@
