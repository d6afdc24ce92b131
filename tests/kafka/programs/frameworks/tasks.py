"""Celery's tasks, over the Kafka port at KAFKA; each appends its result to the file RESULTS."""

import os
from pathlib import Path

from celery import Celery

app = Celery("tasks", broker=f"confluentkafka://{os.environ['KAFKA']}")


@app.task
def add(one: int, other: int) -> None:
    with Path(os.environ["RESULTS"]).open("a") as results:
        results.write(f"{one + other}\n")
