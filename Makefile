# make demo       the main job on shopping data        make test      the tests that need no server and no minutes
# make lint       style, types and import order        make test-all  the others: servers, simulations, slow ones
# make smoke      the paper on tiny synthetic data     make torture   damaged files, kills, full disks (60 s)
# make bounds     the lowest allowed dependencies      make clean     remove the environments
# make serve-demo a world shops at the service         make docs      the site, with its notebooks, in docs/_build
# make latest     the newest dependencies              make dist      wheel and sdist, checked and tried
# make container-check  the container file in a clean Debian root (needs root and debootstrap)
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PIP := -m pip install --quiet --disable-pip-version-check
TRY = PYTHONPATH=$(CURDIR)/src NUMBA_CACHE_DIR=$(CURDIR)/$(OWN)/numba $(OWN)/bin/python -m pytest -n 2 --dist loadfile -W default
CORE := tests/data/test_log.py tests/estimation tests/evaluation/test_evaluate.py tests/learners/test_learners.py tests/cli/test_help.py tests/cli/test_commands.py tests/serve/test_api.py tests/serve/test_store.py

.PHONY: demo test test-all lint smoke docs bounds latest dist torture serve-demo container-check clean

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

docs: $(READY) .venv/docs-ready
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs 2 docs docs/_build/html

.venv/docs-ready: docs/requirements.txt $(READY)
	@$(BIN)/python $(PIP) --requirement docs/requirements.txt
	@touch $@

bounds: OWN := .bounds
bounds:
	@rm -rf $(OWN)
	@$(PYTHON) -m venv $(OWN)
	@$(PYTHON) .ci/lower_bounds.py > $(OWN)/requirements.txt
	@$(OWN)/bin/python $(PIP) --requirement $(OWN)/requirements.txt
	@$(TRY) -k "not scipys_bca" $(CORE)

latest: OWN := .latest
latest:
	@rm -rf $(OWN)
	@$(PYTHON) -m venv $(OWN)
	@$(OWN)/bin/python $(PIP) --upgrade ".[all]" pytest pytest-xdist hypothesis httpx polars psutil
	@$(TRY) $(CORE)

dist: $(READY)
	@rm -rf dist .dist
	@$(PYTHON) -m venv .dist
	@.dist/bin/python $(PIP) build twine
	@.dist/bin/python -m build --outdir dist . > /dev/null
	@.dist/bin/python -m twine check --strict dist/*
	@rm -rf .dist
	@$(PYTHON) -m venv .dist
	@.dist/bin/python $(PIP) "$$(ls dist/*.whl)[dunnhumby]"
	@cd .dist && bin/taurank demo

container-check: $(READY)
	@$(BIN)/python .ci/container_check.py

clean:
	rm -rf .venv .bounds .latest .dist dist docs/_build docs/generated docs/notebooks

$(READY): requirements.txt pyproject.toml
	@echo "Setting up .venv (about a minute) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "taurank needs Python 3.11 or newer; name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) --requirement requirements.txt
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $(READY)
