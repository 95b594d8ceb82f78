"""Fixtures that many tests share."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import optional_programs
import pytest
from programs import Program
from rounds import examples
from servers import Started

import embedlog
from embedlog import Log

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["broker_fixtures"]  # for the tests in several directories: one ZooKeeper for all of them

# pytest-xdist tells its workers how wide and high they are, and what they start would believe it.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)

# A script that starts the suite in its background has it ignore SIGINT, and so would every program it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that has other things to do.
hypothesis.settings.register_profile("unhurried", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("unhurried")


JAVA_FIXTURES = {"spark": "spark", "zookeeper_server": "zookeeper", "zookeeper_servers": "zookeeper"}


# pytest-timeout ends a test by a signal, which a call inside a C library never sees. So long after it,
# the process shows its stacks and exits: pytest-xdist names the test, and the run fails.
EXIT_S = 120.0
STDERR = pytest.StashKey[int]()
PROGRAMS = pytest.StashKey[optional_programs.Programs]()


def _exit_after(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[STDERR])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _exit_after(_timeout_of(item) + EXIT_S, item.config)
    if missing := item.config.stash[PROGRAMS].missing(item):
        pytest.skip("; ".join(missing))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test, with its fixtures, has the programs of every machine and those that it names.

    It leaves no file and no socket open.
    """
    with item.config.stash[PROGRAMS].named_by(item):
        result = yield
    if (left := _left_open()) and not item.get_closest_marker("leaves_open"):
        text = f"left open, and found by the garbage collector: {'; '.join(left)}"
        keywords = dict.fromkeys(item.keywords, 1)
        report = pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "teardown")
        item.ihook.pytest_runtest_logreport(report=report)
    return result


def _left_open() -> list[str]:
    """Collect garbage. Returns what it says of files and sockets that were not closed.

    Otherwise a later test of this process would fail with that.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    gc.freeze()  # what is in use now is not looked at again: the next collection costs next to nothing
    return [str(warning.message) for warning in caught if warning.category is ResourceWarning]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that failed has cancelled what its setup asked for (pytest's own plugin of faulthandler)."""
    _exit_after(_timeout_of(item) + EXIT_S, item.config)


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def _timeout_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark else item.config.getini("timeout"))


def pytest_configure(config: pytest.Config) -> None:
    """Run the files of each directory together, in whatever order they are given.

    Of a directory that it comes back to, pytest 9.1 does not find the fixtures again (its issue 14635).
    """
    config.stash[STDERR] = os.dup(2)  # pytest captures the original one while tests run
    config.stash[PROGRAMS] = optional_programs.Programs()
    config.add_cleanup(config.stash[PROGRAMS].close)
    config.args.sort(key=lambda given: os.path.dirname(given.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture's Java processes share a worker (pytest-xdist), so that they start once.

    Groups begin first, since they take longest (pytest-xdist sorts by how many there are).
    """
    for item in items:
        for name in JAVA_FIXTURES.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(JAVA_FIXTURES[name]))
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.program("chromium"))
        if item.get_closest_marker("leaves_open"):
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def messages() -> Iterator[None]:
    """Some commands have messages go to standard error, which is the test's own: as before afterwards."""
    logger = logging.getLogger("embedlog")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path for a new log."""
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """A new log, closed at the end."""
    with embedlog.open(path) as log:
        yield log


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """program(code, *arguments) starts code in another process."""
    programs: list[Program] = []

    def start(code: str, *arguments: object) -> Program:
        programs.append(Program(code, *arguments))
        return programs[-1]

    yield start
    for started in programs:
        if started.process.poll() is None:
            started.kill()
        for stream in (started.process.stdin, started.process.stdout, started.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """start(*arguments of Python, **environment) starts a server; it is killed at the end."""
    started: list[Started] = []

    def start(*command: object, **environment: object) -> Started:
        started.append(Started(*command, environment=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of a module: Playwright's event loop ends with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=optional_programs.find(
                "chromium"
            ),  # the system's: Playwright's own is a download
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()
