# make demo       the main job on shopping data        make test      the tests that need no server and no minutes
# make lint       style, types and import order        make test-all  the others: servers, simulations, slow ones
# make smoke      the paper on tiny synthetic data     make torture   damaged files, kills, full disks (60 s)
# make bounds     the lowest allowed dependencies      make clean     remove the environments
# make serve-demo a world shops at the service
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PIP := -m pip install --quiet --disable-pip-version-check
CORE := tests/data/test_log.py tests/estimation tests/evaluation/test_evaluate.py tests/learners/test_learners.py tests/cli/test_help.py tests/cli/test_commands.py tests/serve/test_api.py tests/serve/test_store.py

.PHONY: demo test test-all lint smoke bounds torture serve-demo clean

demo: $(READY)
	@$(BIN)/taurank demo

test: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not (integration or slow or statistical)"

test-all: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "integration or slow or statistical"

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

smoke: $(READY)
	@rm -rf out/smoke
	@$(BIN)/taurank paper --preset smoke --out out/smoke

serve-demo: $(READY)
	@$(BIN)/python examples/closed_loop --port 8000 --stay

torture: $(READY)
	@$(BIN)/python tests/torture --seconds 60

bounds:
	@rm -rf .bounds
	@$(PYTHON) -m venv .bounds
	@$(PYTHON) .ci/lower_bounds.py > .bounds/requirements.txt
	@.bounds/bin/python $(PIP) --requirement .bounds/requirements.txt
	@PYTHONPATH=$(CURDIR)/src NUMBA_CACHE_DIR=$(CURDIR)/.bounds/numba .bounds/bin/python -m pytest -n 2 --dist loadfile \
		-W default -k "not scipys_bca" $(CORE)

clean:
	rm -rf .venv .bounds

$(READY): requirements.txt pyproject.toml
	@echo "Setting up .venv (about a minute) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "taurank needs Python 3.11 or newer; name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) --requirement requirements.txt
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $(READY)
