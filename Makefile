# `make demo` and `make test` set up an environment of their own (.venv) and need nothing but Python and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Hundreds of processes are started by tests and measurements: none shall compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# What has to be built anew when it changes.
BUILT := setup.py $(foreach where, embedlog/codec embedlog/fast_append, \
  $(wildcard $(where)/compiled*.py $(where)/*.pxd $(where)/*.h))

.PHONY: demo examples test test-all test-plain soak test-foreign bench bench-sizes bench-spark lint hooks clean

demo: $(VENV)/.demo
	$(BIN)/embedlog demo

# Most tests wait for something (a session that ends, a process that starts), so twice as many run at once as
# there are processors; WORKERS=0 runs them one after the other.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(2 * (os.cpu_count() or 1), 8))')
# Tests that share Java processes run in one of them (--dist loadgroup).
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

# The markers stand in pyproject.toml. `make test` has everything that a change usually breaks; `make test-all` has
# the rest, and nothing of it twice.
REST := slow or jvm or random

test: $(VENV)/.test
	$(PYTEST) -m 'not ($(REST))' $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(PYTEST) -m '$(REST)' $(PYTEST_ARGS)

# Without the compiled loops, as where there is no compiler. (tests/codec runs on both anyway.)
test-plain: $(VENV)/.test
	EMBEDLOG_LOOPS=plain $(PYTEST) -m 'plain and not ($(REST))' $(PYTEST_ARGS)

# Rounds of random kills and faults, many times as many as `make test-all` has: hours. -s shows their seeds, and
# EMBEDLOG_SEED=... repeats one.
soak: $(VENV)/.test
	EMBEDLOG_ROUNDS=$${EMBEDLOG_ROUNDS:-25} $(BIN)/python -m pytest -s -m random $(PYTEST_ARGS)

# Clients that `make test` leaves out: kafkajs and @platformatic/kafka (Node 20.19 or newer, npm), and franz-go's own
# tests (Go 1.26 or newer). The first run downloads them.
test-foreign: $(VENV)/.test tests/foreign/node_modules/.package-lock.json
	$(BIN)/python -m pytest tests/foreign $(PYTEST_ARGS)

tests/foreign/node_modules/.package-lock.json: tests/foreign/package-lock.json
	npm ci --silent --no-audit --no-fund --prefix tests/foreign
	@touch $@

# The pipeline of examples/flights: events, a stream, a nightly load, a report with a plot.
examples: $(VENV)/.examples
	$(BIN)/python examples/flights/events.py flights-data
	$(BIN)/python examples/flights/hourly.py flights-data
	$(BIN)/python examples/flights/nightly.py flights-data
	$(BIN)/python examples/flights/report.py flights-data-warehouse/hourly --plot flights-delays.png

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

# Draws docs/images/performance-*.svg.
bench-sizes: $(VENV)/.bench
	$(BIN)/python -m benchmarks.sizes

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Git hooks: the checks of `make lint` before each commit, and the form of its message (.pre-commit-config.yaml).
hooks: $(VENV)/.test
	$(BIN)/python -m pip install -qq 'pre-commit>=4'
	$(BIN)/pre-commit install

# Spark over a log, over Parquet, and over a source of tuples.
bench-spark: $(VENV)/.bench
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

clean:
	rm -rf $(VENV) tests/foreign/node_modules embedlog-demo flights-data* flights-delays.png build dist *.egg-info $(foreach where, embedlog/codec embedlog/fast_append, $(where)/compiled*.c $(where)/*.so)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "embedlog needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m virtualenv $(VENV); } || \
	  { rm -rf $(VENV); echo "no venv module here: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install -qq --editable '.[demo,spark]'
	@touch $@

$(VENV)/.examples: pyproject.toml $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install -qq --editable '.[examples]'
	@touch $@

$(VENV)/.test: pyproject.toml $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install -qq --editable '.[demo,test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install -qq --editable '.[bench]'
	@touch $@
