"""A task for Celery over its Kafka transport, results in files. `send` prints what its tasks returned.

python celery_tasks.py BOOTSTRAP DIRECTORY worker|send COUNT
"""

from __future__ import annotations

import sys

from celery import Celery

bootstrap, directory, what, count = sys.argv[1:]
app = Celery("tasks", broker=f"confluentkafka://{bootstrap}", backend=f"file://{directory}")
app.conf.task_default_queue = "celery-tasks"
app.conf.worker_enable_remote_control = False  # needs fanout, which the transport does not have
app.conf.broker_transport_options = {"wait_time_seconds": 1}


@app.task(name="square")
def square(number: int) -> int:
    return number * number


if what == "worker":
    app.worker_main(
        ["worker", "--pool", "solo", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    )
else:
    sent = [square.delay(number) for number in range(int(count))]
    print([result.get() for result in sent])
