# `make demo` and `make test` set up their own environment (.venv). They need nothing but Python and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests and benchmarks start hundreds of processes: without bytecode caches each would compile every module.
unexport PYTHONDONTWRITEBYTECODE

# A change of these needs a new build.
BUILT := setup.py $(foreach where, embedlog/codec embedlog/fast_append, \
  $(wildcard $(where)/compiled*.py $(where)/*.pxd $(where)/*.h))

.PHONY: audit demo docs examples test test-programs test-all test-plain soak test-foreign test-java bench bench-sizes bench-growth bench-spark bench-kafka lint hooks wire matrix clean

demo: $(VENV)/.demo
	$(BIN)/embedlog demo

# Most tests wait (for a session to end, for a process to start), so there are twice as many workers as processors.
# WORKERS=0 runs all tests in one process.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(2 * (os.cpu_count() or 1), 8))')
# --dist loadgroup: tests that share Java processes run in one worker. A worker that hangs exits (tests/conftest.py), and
# with it the run fails: after a restart pytest-xdist may wait forever at the end.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0

# pyproject.toml explains the markers. `make test` runs everything that a change usually breaks, `make test-all` the
# rest but for what takes hours or repeats the others at length (`make soak`). Tests with random examples (Hypothesis
# marks them) are in both: `make test` draws a quarter of the examples.
REST := slow or jvm or random

# Environments of frameworks and programs that pin their clients.
FRAMEWORKS := tests/foreign/frameworks/.venv tests/foreign/quix/.venv

test: $(VENV)/.test
	EMBEDLOG_EXAMPLES=25 $(PYTEST) -m 'not ($(REST) or soak)' $(PYTEST_ARGS)

# Of these, the tests that need programs which are no Python packages (tests/optional_programs.py): `make test` runs them
# too, or skips them.
test-programs: $(VENV)/.test
	EMBEDLOG_EXAMPLES=25 $(PYTEST) -m 'program and not ($(REST) or soak)' $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(PYTEST) -m '($(REST) or hypothesis) and not soak' $(PYTEST_ARGS)

# Without the compiled loops, as on a machine without a compiler. (tests/codec runs on both anyway.)
test-plain: $(VENV)/.test
	EMBEDLOG_LOOPS=plain $(PYTEST) -m plain $(PYTEST_ARGS)

# Random kills and faults, in many more rounds than `make test-all`: hours. -s shows the seeds; EMBEDLOG_SEED=...
# repeats one.
soak: $(VENV)/.test
	EMBEDLOG_ROUNDS=$${EMBEDLOG_ROUNDS:-25} $(BIN)/python -m pytest -s -m 'random or soak' $(PYTEST_ARGS)

# Clients that `make test` and `make test-all` leave out: kafkajs and @platformatic/kafka (Node 20.19 or newer, npm),
# franz-go's own tests (Go 1.26 or newer), Python's frameworks in environments of their own, and Kafka's own Java client
# (Java 17 or newer, Maven). The first run downloads them.
test-foreign: $(VENV)/.test tests/foreign/node_modules/.package-lock.json $(addsuffix /.installed,$(FRAMEWORKS))
	$(BIN)/python -m pytest tests/foreign $(PYTEST_ARGS)

tests/foreign/%/.venv/.installed: tests/foreign/%/requirements.txt
	@$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -qq -r $<
	@touch $@

tests/foreign/node_modules/.package-lock.json: tests/foreign/package-lock.json
	npm ci --silent --no-audit --no-fund --prefix tests/foreign
	@touch $@

test-java: $(VENV)/.test
	$(BIN)/python -m pytest tests/java $(PYTEST_ARGS)

# Writes the matrix in docs/explanation/promoting.md: every public method, on a directory, on `embedlog serve` and on
# Apache Kafka (Java, Maven). MATRIX_ARGS="serve" runs that column alone.
matrix: $(VENV)/.test
	PYTHONPATH=tests:tests/java $(BIN)/python -m matrix $(MATRIX_ARGS)

# Generates Kafka's messages and error codes from kio's schemas. scripts/wire_apis.py lists the APIs.
wire: $(VENV)/.test
	$(BIN)/python scripts/wire_apis.py

# The pipeline in examples/flights: events, a stream, a nightly load, a report with a plot.
examples: $(VENV)/.examples
	$(BIN)/python examples/flights/events.py flights-data
	$(BIN)/python examples/flights/hourly.py flights-data
	$(BIN)/python examples/flights/nightly.py flights-data
	$(BIN)/python examples/flights/report.py flights-data-warehouse/hourly
	$(BIN)/python examples/flights/plot.py flights-data-warehouse/hourly flights-delays.png

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

# Draws docs/images/performance-*.svg.
bench-sizes: $(VENV)/.bench
	$(BIN)/python -m benchmarks.sizes

# How costs grow with the log, its segments, partitions, consumers, reader processes; --large: up to 20 GB.
bench-growth: $(VENV)/.bench
	$(BIN)/python -m benchmarks.growth $(BENCH_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/prose.py

# The site, into site/. A broken link or a name that does not exist fails.
docs: $(VENV)/.test
	$(BIN)/zensical build --clean --strict

# Known vulnerabilities of the packages that the tests install, which are all that embedlog can use.
audit: $(VENV)/.test
	@$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install -qq 'pip-audit>=2.9'
	$(VENV)-audit/bin/pip-audit --skip-editable --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# Git hooks: the checks of `make lint` before each commit, and the form of its message (.pre-commit-config.yaml).
hooks: $(VENV)/.test
	$(BIN)/python -m pip install -qq 'pre-commit>=4'
	$(BIN)/pre-commit install

# Spark reading a log, Parquet, and a source of tuples.
bench-spark: $(VENV)/.bench
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

# Beside Apache Kafka, with its own Java client; needs Java 17 and Maven.
bench-kafka: $(VENV)/.bench
	$(BIN)/python -m benchmarks.beside_kafka $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(VENV)-audit $(FRAMEWORKS) tests/foreign/node_modules tests/java/target benchmarks/kafka/target embedlog-demo site .cache flights-data* flights-delays.png build dist *.egg-info $(foreach where, embedlog/codec embedlog/fast_append, $(where)/compiled*.c $(where)/*.so)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "embedlog needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m virtualenv $(VENV) $(VENV)-audit; } || \
	  { rm -rf $(VENV) $(VENV)-audit; echo "no venv module here: apt-get install python3-venv"; exit 1; }
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
