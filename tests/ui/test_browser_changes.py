"""What `--writable` changes, clicked in a real browser, and what the log has then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import embedlog
from embedlog.errors import ProducerFenced

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)> &"


@pytest.fixture
def made(path: Path) -> Path:
    """A group that has read the half of a topic, and a queue with two dead letters."""
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        log.append_many("clicks", [b"x"] * 100)
        log.group(HOSTILE).reset("clicks", to=50, partitions=0)
        log.create_topic("jobs")
        log.append_many("jobs", [b"1", b"2"])
        with log.queue("jobs") as queue:
            for _ in range(2):
                job = queue.take(10_000)
                job.reject(HOSTILE)
    return path


def test_a_group_is_reset_then_deleted(
    made: Path, serve: Callable[..., str], visit: Callable[..., Page]
) -> None:
    page = visit(serve(made, "--writable"))
    page.goto("/groups")
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_label("to", exact=True).fill("earliest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("50 again").wait_for()
    with embedlog.open(made, mode="r") as log:
        assert log.group(HOSTILE).describe().lag == 50  # the preview has changed nothing
    page.get_by_role("button", name="Reset 1 partition").click()
    page.wait_for_url("**/group?name=*")
    with embedlog.open(made, mode="r") as log:
        assert log.group(HOSTILE).describe().lag == 100
    page.get_by_label("the group's name").fill(HOSTILE)
    page.get_by_role("button", name="Delete it, with its offsets").click()
    page.wait_for_url("**/groups")
    with embedlog.open(made, mode="r") as log:
        assert HOSTILE not in log.groups()


def test_dead_letters_are_sent_again(
    made: Path, serve: Callable[..., str], visit: Callable[..., Page]
) -> None:
    page = visit(serve(made, "--writable"))
    page.goto("/queue?topic=jobs&group=default")
    letters = page.get_by_role("region", name="Dead letters").locator("tbody tr")
    assert letters.count() == 2
    assert HOSTILE in letters.first.inner_text()
    letters.first.get_by_text("send again").click()
    page.get_by_role("button", name="Send offset 0 of partition 0 again").click()
    page.get_by_role("button", name="Send offset 0 of partition 0 again").wait_for(state="detached")
    assert letters.count() == 1
    page.get_by_text("Send all again").click()
    page.get_by_role("button", name="Send 1 again").click()
    page.get_by_role("region", name="Dead letters").wait_for(state="detached")
    with embedlog.open(made, mode="r") as log:
        assert [record.value for record in log.read("jobs")] == [b"1", b"2", b"1", b"2"]


def test_a_transaction_is_aborted(path: Path, serve: Callable[..., str], visit: Callable[..., Page]) -> None:
    with embedlog.open(path, shared=True) as log:
        log.create_topic("clicks")
        address = serve(path, "--writable")
        with pytest.raises(ProducerFenced), log.transaction(HOSTILE) as transaction:
            transaction.append("clicks", b"1")
            page = visit(address)
            page.goto("/transactions")
            row = page.get_by_role("row").filter(has_text="Ongoing")
            row.get_by_text("abort", exact=True).click()
            assert log.transactions()[0].is_open
            row.get_by_label("its id").fill(HOSTILE)
            row.get_by_role("button", name="Abort it").click()
            page.get_by_role("cell", name="Empty", exact=True).wait_for()  # as after a new producer
        assert list(log.read("clicks", isolation_level="read_committed")) == []
