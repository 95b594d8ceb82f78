"""Tasks of Celery that append to a log, which Celery's main process has opened before it forks its pool."""

from __future__ import annotations

import os
import signal

import celery

import embedlog

QUEUE = os.environ["QUEUE"]

app = celery.Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "control_folder": f"{QUEUE}/control",
        "data_folder_in": f"{QUEUE}/in",
        "data_folder_out": f"{QUEUE}/out",
        "polling_interval": 0.05,
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,  # a task whose process was killed is done again
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
)
producer: embedlog.Producer | None = None  # of this process


@app.task(name="append")
def append(name: str) -> str:
    """Append durably. Returns the process and the name."""
    log.append("events", name.encode(), flush=True)
    return f"{os.getpid()} {name}"


@app.task(name="send")
def send(name: str) -> str:
    """Send, and leave the record in the buffer. Returns as `append`."""
    global producer
    if producer is None:
        producer = log.producer(linger_ms=3_600_000)
    producer.send("events", name.encode())
    return f"{os.getpid()} {name}"


@app.task(name="die")
def die(name: str) -> str:
    """Append, but the first time kill this process before."""
    try:
        with open(f"{QUEUE}/{name}", "x") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        pass
    return append(name)


if os.environ.get("EVENTS_LOG"):  # not where tasks are only sent
    log = embedlog.open(os.environ["EVENTS_LOG"], shared=True)
    log.create_topic("events", exist_ok=True)
