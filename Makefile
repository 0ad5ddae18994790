# make demo   the main job, from nothing        make test   the tests
# make lint   ruff and mypy --strict            make smoke  every experiment of the paper on tiny made-up data
# make clean  forget the environment
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint smoke clean

demo: $(READY)
	@$(BIN)/taurank demo

test: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

smoke: $(READY)
	@rm -rf out/smoke
	@$(BIN)/taurank reproduce --preset smoke --out out/smoke

clean:
	rm -rf .venv

$(READY): requirements.txt pyproject.toml
	@echo "Setting up .venv (about a minute) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "taurank needs Python 3.11 or newer; say which one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)
