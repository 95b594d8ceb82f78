# `make demo` and `make test` set up an environment of their own (.venv) and need nothing but Python and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Hundreds of processes are started by tests and measurements: none shall compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# What has to be built anew when it changes.
BUILT := setup.py $(foreach where, embedlog embedlog/codec, \
  $(wildcard $(where)/compiled_*.py $(where)/*.pxd $(where)/*.h))

.PHONY: demo examples test test-plain test-cluster test-faults test-kills test-mirror test-foreign bench bench-sizes bench-spark lint hooks clean

demo: $(VENV)/.demo
	$(BIN)/embedlog demo

# Most tests wait for something (a session that ends, a process that starts), so twice as many run at once as
# there are processors; WORKERS=0 runs them one after the other.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(2 * (os.cpu_count() or 1), 8))')
AT_ONCE := -n $(WORKERS)

test: $(VENV)/.test
	$(BIN)/python -m pytest $(AT_ONCE) $(PYTEST_ARGS)

# Without the compiled loops, as where there is no compiler: the tests of what goes through them (tests/codec
# runs on both anyway).
PLAIN_TESTS := $(addprefix tests/test_, $(addsuffix .py, append_one appender columns compaction decoding \
  export faults flush format_docs importing kill log log_reader model offset_records processes producer \
  publication read_committed readme recovery recovery_exhaustive repair segment_index short_way verify))

test-plain: $(VENV)/.test
	EMBEDLOG_LOOPS=plain $(BIN)/python -m pytest $(AT_ONCE) $(PLAIN_TESTS) $(PYTEST_ARGS)

# Drivers and Python workers of Spark's killed 10 times in each test; `make test` has 2.
test-kills: $(VENV)/.test
	EMBEDLOG_KILLS=10 $(BIN)/python -m pytest tests/spark -k kill $(PYTEST_ARGS)

# Mirrors whose source, target and self are killed 50 times in each of three tests; `make test` has 4.
test-mirror: $(VENV)/.test
	EMBEDLOG_MIRROR_ROUNDS=50 $(BIN)/python -m pytest tests/cluster/test_mirror_kills.py $(PYTEST_ARGS)

# Brokers of a cluster restarted under load, many times over.
test-cluster: $(VENV)/.test
	EMBEDLOG_CLUSTER_ROUNDS=20 $(BIN)/python -m pytest tests/cluster/test_rolling_restart.py --timeout 3600 $(PYTEST_ARGS)

# Brokers, consumers, ZooKeeper servers and the network between them fail at random, 20 rounds; `make test` has 1.
# EMBEDLOG_SEED=... repeats what a failure tells.
test-faults: $(VENV)/.test
	EMBEDLOG_FAULT_ROUNDS=$${EMBEDLOG_FAULT_ROUNDS:-20} $(BIN)/python -m pytest -s \
	  tests/cluster/test_ensemble_faults.py tests/cluster/test_random_faults.py $(PYTEST_ARGS)

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
	rm -rf $(VENV) tests/foreign/node_modules embedlog-demo flights-data* flights-delays.png build dist *.egg-info $(foreach where, embedlog embedlog/codec, $(where)/compiled_*.c $(where)/*.so)

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
