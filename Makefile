# Commands for users and developers. Needs python3, make and the package registries; everything else is set up here.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
# Tests start hundreds of Python processes, and pytest rewrites every test file: both need bytecode.
unexport PYTHONDONTWRITEBYTECODE

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help setup servers run test thorough check format docs screenshots lint types simulate chaos bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

define CHECK_PYTHON
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Mainspring needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),run) PYTHON=python3.12"; exit 1; }
endef

# What serving needs, and no more. Everything for work on Mainspring itself covers it.
.venv/serving: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Setting up .venv to serve: about 40 packages, once, half a minute or more …"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --editable '.[server,mongodb]'
	@touch $@

.venv/ready: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "Setting up .venv to work on Mainspring: about 120 packages, once, a minute or more …"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --editable '.[dev]'
	@touch .venv/serving $@

setup: .venv/ready ## make the virtual environment

servers: .venv/ready ## fetch the servers that tests use (they would too, under their time limit)
	-@$(BIN)/python -m tests.support.servers fetch

run: .venv/serving ## start the service on http://127.0.0.1:3000, on the embedded store
	@$(BIN)/mainspring serve

test: servers ## the tests of every behaviour, on a fresh machine too; about 9 minutes on two cores
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not thorough"

thorough: servers ## the tests that `make test` leaves out; about 7 minutes on two cores
	$(BIN)/python -m pytest -n auto --dist worksteal -m thorough

format: .venv/ready ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/ready ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

screenshots: .venv/ready ## make the pictures of the dashboard in docs/assets/screenshots
	$(BIN)/python -m tools.screenshots

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/ready
	$(BIN)/mypy

check: lint types test thorough ## lint, types, `make test` and the thorough rest: what CI runs

simulate: .venv/ready ## new random examples for the tests of properties; 20,000 seeds of a cluster on virtual time
	$(BIN)/python -m pytest -n auto --hypothesis-profile=random tests/machine tests/core
	$(BIN)/python -m tests.simulation --seeds 20000

chaos: .venv/ready ## real processes and kill -9; a few minutes
	$(BIN)/python -m pytest -p no:cacheprovider chaos

bench: .venv/ready ## every benchmark compared with its peers
	$(BIN)/python -m bench all

clean: ## remove what was set up
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
