"""Reports the progress of this thread's Spark jobs, from Spark's status tracker."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress: TypeAlias = Callable[[str, int, int], object]
"""Called as (stage, tasks done, total tasks)."""

_EVERY_S: Final = 0.2
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


@contextlib.contextmanager
def watched(spark: SparkSession, what: str, progress: Progress | None) -> Iterator[None]:
    """Call `progress` from another thread with the tasks done of the block's Spark jobs, and then from this
    one with all of them as done: the last call, after the other thread has ended.

    An error of `progress` is raised at the end of the block.
    """
    if progress is None:
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION)
    group = f"embedlog-{uuid.uuid4().hex}"
    context.setJobGroup(group, what)
    finished = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        shown = 0, 0
        try:
            while not finished.wait(_EVERY_S):
                tasks = _tasks(spark, group)
                if tasks != shown:
                    progress(what, *tasks)
                shown = tasks
        except BaseException as failure:
            failures.append(failure)

    watcher = threading.Thread(target=watch, name="embedlog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        for name, value in zip((_GROUP, _DESCRIPTION), before, strict=True):
            context.setLocalProperty(name, value)  # type: ignore[arg-type]
    if failures:
        raise failures[0]
    # After the watcher's end: a count that it read before would follow the final one.
    progress(what, *_complete(spark, group))


def _tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """(tasks done, tasks known) of a group's jobs."""
    tracker = spark.sparkContext.statusTracker()
    stages = {
        stage: info
        for job in tracker.getJobIdsForGroup(group)
        if (job_info := tracker.getJobInfo(job)) is not None
        for stage in job_info.stageIds
        if (info := tracker.getStageInfo(stage)) is not None
    }
    return (
        sum(info.numCompletedTasks for info in stages.values()),
        sum(info.numTasks for info in stages.values()),
    )


def _complete(spark: SparkSession, group: str) -> tuple[int, int]:
    """All tasks as done: stages that Spark skipped count as done."""
    _, total = _tasks(spark, group)
    return total, total
