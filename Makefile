# Every command of the project's daily life; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# two installs into the same folder: the light one is all that the demo needs
LIGHT := $(VENV)/.light
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
ARGS ?=
AZURITE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/deltasql/azurite
# Tests share one Postgres server, so more workers than four only wait for it.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 2 ? 2 : n > 4 ? 4 : n )))

.PHONY: help install constraints demo demo-spark test test-parts test-pythons lint format docs bench java jars azurite logstore clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Options: PYTHON=python3.12 (install)  ARGS='-k sqlite' (test, demo, bench, docs)  JOBS=2 (test)"

install: $(STAMP)  ## set up .venv with everything for development; does nothing when up to date

$(BIN)/python:
	@python=""; \
	for candidate in $${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "deltalakedb needs Python 3.11 or newer; found: $$($${PYTHON:-python3} --version 2>&1 | tail -n 1)." >&2; \
	  echo "  → install one, or name it: make install PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "  → Python's venv module is incomplete; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade

$(LIGHT): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing deltalakedb with SQLite and DuckDB into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[duckdb]'
	@touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the pinned development environment into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(LIGHT) $@

constraints: $(STAMP)  ## write constraints.txt anew from the newest versions that fit
	@$(PIP) install uv
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --quiet \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o $(VENV)/compiled.txt
	@{ sed -n '/^#/p' constraints.txt; cat $(VENV)/compiled.txt; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

demo: $(LIGHT)  ## a tour on SQLite: write, travel in time, look into SQL and the log; a light install
	@$(BIN)/python examples/tour.py $(ARGS)

demo-spark: $(STAMP)  ## a plain Delta table imported by PySpark and read by delta-spark; needs Java 17
	@$(MAKE) java jars
	@$(BIN)/python examples/spark_import.py $(ARGS)

test: $(STAMP) test-parts  ## run the tests on SQLite, DuckDB and Postgres
	@# every commit flushes several files, so temporary folders are in memory if it has the room
	@if [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 8000000 ] 2>/dev/null && [ -w /dev/shm ]; then \
	  export TMPDIR=$$(mktemp -d /dev/shm/deltasql-tests.XXXXXX); chmod 755 "$$TMPDIR"; trap 'rm -rf "$$TMPDIR"' EXIT; \
	fi; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-parts: $(STAMP)  ## what only tests need: Java, Delta's jars, Azure's emulator; without them tests are skipped
	@$(MAKE) java || true
	@$(MAKE) jars || echo "Without Delta's jars the tests of Spark are skipped."
	@$(MAKE) azurite

test-pythons:  ## run the fast part of the tests on the oldest and the newest Python at hand
	@python3 tools/test_pythons.py $(ARGS)

lint: $(STAMP)  ## check style, types and the rooms' borders; all four run, any failure fails
	@status=0; \
	for check in "ruff check ." "ruff format --check ." "mypy --strict src" "lint-imports"; do \
	  echo "── $$check"; $(BIN)/$$check || status=1; \
	done; \
	exit $$status

format: $(STAMP)  ## format the code and mend what ruff can
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

docs: $(STAMP)  ## build the documentation into site/; `make docs ARGS=serve` serves it instead
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict --quiet)

bench: $(STAMP)  ## measure planning beside stock deltalake
	@$(BIN)/python benchmarks/plan.py $(ARGS)

java:  ## look for Java 17+, which only Spark needs; installs it on Debian as root
	@major=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 || true); \
	if [ "$${major:-0}" -ge 17 ]; then echo "Java $$major is fine"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends default-jre-headless; \
	else echo "Java 17 or newer is needed.  → install a JRE, on Debian: apt-get install default-jre-headless" >&2; exit 1; fi

jars: $(STAMP)  ## fetch Delta's jars for Spark into the user's cache
	@$(BIN)/python -m deltalakedb.spark.jars

azurite:  ## install Azure's emulator for the tests into the user's cache, if npm is there
	@if [ -x "$(AZURITE)/node_modules/.bin/azurite-blob" ]; then :; \
	elif command -v npm >/dev/null; then echo "installing Azurite into $(AZURITE)"; \
	  npm install --silent --no-audit --no-fund --prefix "$(AZURITE)" azurite@3.35.0 \
	    || echo "Azurite cannot be installed: the tests on Azure are skipped." >&2; \
	else echo "npm is not installed: the tests on Azure are skipped."; fi

logstore: $(STAMP)  ## make the jar of Spark's log store anew from its source
	@$(BIN)/python tools/build_logstore.py

clean:  ## remove .venv, caches and what demo and benchmarks left
	@rm -rf $(VENV) .venv-3.* site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build demo-lake benchmarks/data benchmarks/results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
