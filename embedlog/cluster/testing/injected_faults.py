"""Faults that a test injects into its broker: error codes and delays, by API, topic and client id.

    request -> [a fault that matches] -> guards -> handler -> response

A request that changes something does not reach its handler: it gets the answer that a client without the
permission gets, with another code (api_permissions.py). One that only reads is handled, and its response gets
the code. Where a fault is of a topic, the rest of the request is handled. A delay begins once the response is
there: the broker has done what was asked, and the client does not know yet.

Faults are injected by the program that has started the broker. There is no setting and no request for them.
The idea is that of librdkafka's mock cluster and franz-go's kfake.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final

from ...errors import InvalidArgument
from ...runtime.locks import Lock
from ...validation import check_int, check_text
from ...wire.apis import APIS
from ...wire.apis.create_topics import CreatableTopicResult, CreateTopicsResponse
from ...wire.apis.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from ...wire.error_codes import ErrorCode
from ..broker.broker_context import BrokerContext, Handler, RequestContext
from ..broker.futures import completed
from ..broker.guards.api_permissions import PERMISSIONS
from ..broker.guards.authorization import Refuse, then
from ..broker.guards.log_guards import refuse_produce
from ..network.close_reasons import CloseConnection
from ..network.event_loop import EventLoop

_READS: Final = {
    "Fetch": True,
    "ListOffsets": True,
    "Metadata": True,
    "OffsetFetch": True,
    "OffsetForLeaderEpoch": True,
    "ConsumerGroupDescribe": False,
    "DescribeCluster": False,
    "DescribeGroups": False,
    "FindCoordinator": False,
    "ListGroups": False,
}
"""APIs that only read, and whether their responses name topics."""


def _no_topics(context: RequestContext, request: Any, code: ErrorCode) -> Any:
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
    )


def _no_deletions(context: RequestContext, request: Any, code: ErrorCode) -> Any:
    ids = [
        DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
        for topic in request.topics
    ]
    names = [DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    return DeleteTopicsResponse(responses=ids + names)


def _not_produced(context: RequestContext, request: Any, code: ErrorCode) -> Any:
    if not request.acks:  # as for any other error: the client learns of it like this
        raise CloseConnection(f"produce with acks=0 met an injected error: {code.name}")
    return refuse_produce(context, request, code)


# API -> the lists of topics in the request, and the one in the response
_BY_TOPIC: Final[Mapping[str, tuple[tuple[str, ...], str]]] = MappingProxyType(
    {
        "Produce": (("topic_data",), "responses"),
        "OffsetCommit": (("topics",), "topics"),
        "TxnOffsetCommit": (("topics",), "topics"),
        "DeleteRecords": (("topics",), "topics"),
        "CreatePartitions": (("topics",), "results"),
        "CreateTopics": (("topics",), "topics"),
        "DeleteTopics": (("topics", "topic_names"), "responses"),
    }
)


def _refusal(api: str) -> Refuse | None:
    """What answers a request with an error and nothing else; None if nothing does."""
    refusals: dict[str, Refuse] = {
        "Produce": _not_produced,
        "CreateTopics": _no_topics,
        "DeleteTopics": _no_deletions,
    }
    row = PERMISSIONS[api]
    refuse = refusals.get(api, row.refuse)
    entries, response = row.entries, row.response
    if refuse is not None or entries is None or response is None:
        return refuse

    def answer(context: RequestContext, request: Any, code: ErrorCode) -> Any:
        requested = getattr(request, entries.of)
        return response(**{entries.into: [entries.answer(entry, code) for entry in requested]})

    return answer


class InjectedFault:
    """A fault. A context manager that removes it. Thread-safe.

    Attributes:
        requests: how many requests it has met.
    """

    def __init__(
        self,
        api: str,
        code: ErrorCode | None,
        delay_s: float,
        topic: str | None,
        client_id: str | None,
        times: int | None,
    ) -> None:
        self.api, self.code, self.delay_s, self.topic, self.client_id = api, code, delay_s, topic, client_id
        self.requests = 0
        self._left = times
        self._lock = Lock()

    def __repr__(self) -> str:
        times = "every request" if self._left is None else f"{self._left} more"
        error = "no error" if self.code is None else self.code.name
        return f"<InjectedFault of {self.api}: {error}, {self.delay_s:g} s, {times}>"

    def __enter__(self) -> InjectedFault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Meet no request from now on. Responses that are delayed stay so."""
        with self._lock:
            self._left = 0

    def may_meet(self, api: str, client_id: str) -> bool:
        """Whether it is for an API's requests of a client."""
        return self._left != 0 and self.api == api and self.client_id in (None, client_id)

    def meet(self) -> bool:
        """Count a request. False if there have been enough."""
        with self._lock:
            if self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            self.requests += 1
            return True


class InjectedFaults:
    """The faults of a broker, also over its restarts. Thread-safe."""

    def __init__(self) -> None:
        self._faults: tuple[InjectedFault, ...] = ()  # replaced as a whole
        self._lock = Lock()
        self._delayed: set[_Delayed] = set()

    def inject(
        self,
        api: str,
        *,
        error: str | int | None = None,
        delay_ms: float = 0,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = 1,
    ) -> InjectedFault:
        """See `BrokerForTests.inject`."""
        code = _code_of(error)
        if times is not None:
            check_int("times", times, low=1)
        for name, value in (("topic", topic), ("client_id", client_id)):
            if value is not None:
                check_text(name, value)
        if not isinstance(delay_ms, int | float) or delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms!r}: give milliseconds, 0 or more")
        if code is None and not delay_ms:
            raise InvalidArgument('give an error ("NOT_LEADER_OR_FOLLOWER"), a delay_ms, or both')
        _check_api(api, code, topic)
        fault = InjectedFault(api, code, delay_ms / 1000, topic, client_id, times)
        with self._lock:
            self._faults += (fault,)
        return fault

    def clear(self) -> None:
        """Remove all faults, and send the responses that are delayed."""
        with self._lock:
            faults, self._faults = self._faults, ()
        for fault in faults:
            fault.remove()
        self.release()

    def release(self) -> None:
        """Send the responses that are delayed."""
        with self._lock:
            delayed, self._delayed = self._delayed, set()
        for response in delayed:
            response.send()

    def around(self, broker: BrokerContext, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The handlers, each wrapped by the faults of its API."""
        return {api: self._around(broker, api, handler) for api, handler in handlers.items()}

    def _around(self, broker: BrokerContext, api: str, handler: Handler) -> Handler:
        change = self._overwrite if api in _READS else self._refuse

        def handle(context: RequestContext, request: Any) -> Any:
            for fault in self._faults:
                if fault.may_meet(api, context.client_id):
                    result = change(broker, fault, handler, context, request)
                    if result is not None:
                        return result
            result = handler(context, request)
            # A future: the next Produce request comes here, too, instead of following a template.
            return result if api != "Produce" or isinstance(result, Future) else completed(result)

        return handle

    def _refuse(
        self,
        broker: BrokerContext,
        fault: InjectedFault,
        handler: Handler,
        context: RequestContext,
        request: Any,
    ) -> Any:
        """The result of a request that changes something; None if the fault does not meet it."""
        request_fields, response_field = _BY_TOPIC.get(fault.api, ((), ""))
        unmet_request = None if fault.topic is None else copy.copy(request)
        if fault.topic is not None:
            met_request, unmet = copy.copy(request), 0
            for name in request_fields:
                messages = getattr(request, name)
                topics = [_topic_of(broker, message) == fault.topic for message in messages]
                setattr(
                    met_request,
                    name,
                    [message for message, is_met in zip(messages, topics, strict=True) if is_met],
                )
                setattr(
                    unmet_request,
                    name,
                    [message for message, is_met in zip(messages, topics, strict=True) if not is_met],
                )
                unmet += topics.count(False)
            if not any(getattr(met_request, name) for name in request_fields):
                return None
            if not unmet or fault.code is None:
                unmet_request = None
            request = request if fault.code is None else met_request
        if not fault.meet():
            return None
        if fault.code is None:
            return self._delay(fault, context, handler(context, request))
        refuse = _refusal(fault.api)
        assert refuse is not None
        refused = refuse(context, request, fault.code)
        if unmet_request is None:
            return self._delay(fault, context, refused)
        handled = handler(context, unmet_request)
        answers = refused.result() if isinstance(refused, Future) else refused
        merged = then(
            handled,
            lambda response: getattr(response, response_field).extend(getattr(answers, response_field)),
        )
        return self._delay(fault, context, merged)

    def _overwrite(
        self,
        broker: BrokerContext,
        fault: InjectedFault,
        handler: Handler,
        context: RequestContext,
        request: Any,
    ) -> Any:
        """The result of a request that reads. A fault of a topic meets the responses that name the topic."""
        result = handler(context, request)
        answered: Future[Any] = result if isinstance(result, Future) else completed(result)
        delayed = self._delayed_by(context)

        def change(handled: Future[Any]) -> None:
            if handled.cancelled() or handled.exception() is not None:
                delayed.take(handled, 0)
                return
            response = handled.result()
            meets = fault.topic is None or any(
                _topic_of(broker, message) == fault.topic for message in _messages(response)
            )
            if not (meets and fault.meet()):
                delayed.take(handled, 0)
                return
            if fault.code is not None:
                _set_code(broker, response, fault.code, fault.topic)
            delayed.take(handled, fault.delay_s)

        answered.add_done_callback(change)
        return delayed.future

    def _delay(self, fault: InjectedFault, context: RequestContext, result: Any) -> Any:
        answered: Future[Any] = result if isinstance(result, Future) else completed(result)
        delayed = self._delayed_by(context)
        answered.add_done_callback(lambda handled: delayed.take(handled, fault.delay_s))
        return delayed.future

    def _delayed_by(self, context: RequestContext) -> _Delayed:
        return _Delayed(self, context.connection.loop)

    def hold(self, delayed: _Delayed) -> None:
        with self._lock:
            self._delayed.add(delayed)

    def drop(self, delayed: _Delayed) -> None:
        with self._lock:
            self._delayed.discard(delayed)


class _Delayed:
    """A response that is sent later."""

    def __init__(self, faults: InjectedFaults, loop: EventLoop[Any]) -> None:
        self.future: Future[Any] = Future()
        self._faults = faults
        self._loop = loop
        self._answered: Future[Any] | None = None
        self._sent = False
        self._lock = Lock()

    def take(self, answered: Future[Any], delay_s: float) -> None:
        """The response is there: send it after a delay."""
        self._answered = answered
        if not delay_s:
            self.send()
            return
        self._faults.hold(self)
        self._loop.post(lambda: self._loop.call_later(delay_s, self.send))

    def send(self) -> None:
        self._faults.drop(self)
        with self._lock:
            if self._sent:
                return
            self._sent = True
        answered = self._answered
        assert answered is not None
        if not self.future.set_running_or_notify_cancel():
            return
        if answered.cancelled():
            self.future.set_exception(CloseConnection("the request was cancelled"))
        elif (error := answered.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(answered.result())


def _code_of(error: str | int | None) -> ErrorCode | None:
    if error is None:
        return None
    try:
        code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        code = ErrorCode.NONE
    if code is ErrorCode.NONE:
        raise InvalidArgument(
            f"error is {error!r}: give the name or number of one of Kafka's errors, "
            'such as "NOT_LEADER_OR_FOLLOWER" or 6'
        )
    return code


def _check_api(api: str, code: ErrorCode | None, topic: str | None) -> None:
    names = {exchange.api.name for exchange in APIS.values()}
    if api not in names:
        raise InvalidArgument(f"api is {api!r}: give the name of one of Kafka's APIs, such as 'Produce'")
    if code is not None and api not in _READS and (api not in PERMISSIONS or _refusal(api) is None):
        possible = sorted(name for name in names & PERMISSIONS.keys() if name in _READS or _refusal(name))
        raise InvalidArgument(
            f"no error can be injected into {api}, only a delay. Errors are for {', '.join(possible)}"
        )
    if topic is not None and not _READS.get(api, api in _BY_TOPIC):
        possible = sorted({*_BY_TOPIC, *(name for name, names_topics in _READS.items() if names_topics)})
        raise InvalidArgument(f"a fault of {api} has no topic: topics are for {', '.join(possible)}")


def _topic_of(broker: BrokerContext, entry: Any) -> str | None:
    """The topic that a part of a message is about."""
    if isinstance(entry, str):
        return entry
    for field in ("name", "topic", "topic_name"):
        if value := getattr(entry, field, None):
            return str(value)
    topic_id = getattr(entry, "topic_id", None)
    return broker.topic_name(topic_id) if topic_id else None


def _parts(message: Any) -> Iterator[Any]:
    """The messages in the lists of a message."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, list):
            yield from (inner for inner in value if dataclasses.is_dataclass(inner))


def _messages(message: Any) -> Iterator[Any]:
    for part in _parts(message):
        yield part
        yield from _messages(part)


def _set_code(broker: BrokerContext, response: Any, code: ErrorCode, topic: str | None) -> None:
    """Set the code of each part (of the topic) that has one; that of the response if no part has."""
    coded = []

    def look(message: Any, is_inside: bool) -> None:
        for part in _parts(message):
            is_of_topic = is_inside or _topic_of(broker, part) == topic
            if is_of_topic and hasattr(part, "error_code"):
                coded.append(part)
            look(part, is_of_topic)

    look(response, topic is None)
    for part in coded or [response]:
        part.error_code = code
        if hasattr(part, "records"):
            part.records = b""
