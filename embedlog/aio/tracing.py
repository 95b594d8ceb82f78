"""The clients of tasks that embedlog.opentelemetry traces: its functions around `send` and `poll`."""

from __future__ import annotations

from typing import Any

from ..clients.batch import SendFuture
from ..clients.record_input import HeadersInput
from ..model import Record
from ..opentelemetry import Sending, Tracing, of_consumer, receiving
from .consumer import Consumer
from .producer import Producer


class TracedProducer(Producer):
    """A producer that sends the context of a span with each record. For its arguments see Producer."""

    def __init__(self, tracing: Tracing, *arguments: Any) -> None:
        self._tracing = tracing
        super().__init__(*arguments)

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendFuture:
        """As `Producer.send`, within a span that ends when the future is done. See
        `embedlog.opentelemetry.TracedProducer.send`."""
        with Sending(self._tracing, topic, value, key, headers) as sending:
            future = await super().send(
                topic,
                value,
                key=key,
                headers=sending.headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        sending.ends_with(future)
        return future


class TracedConsumer(Consumer[Any, Any]):
    """A consumer whose polls have spans. For its arguments see Consumer."""

    def __init__(self, tracing: Tracing, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._tracing = tracing
        self._about = of_consumer(self.group, keywords["options"].get("client_id"))

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record[Any, Any]]:
        """As `Consumer.poll`. A poll that returns records has a span, with a link to each one's sending."""
        with receiving(self._tracing, self._about) as records:
            records += await super().poll(timeout_ms, max_records)
        return records
