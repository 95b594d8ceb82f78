"""What a work queue promises, checked from outside: on what its workers say, and on its dead letters.

A worker says a line for each fact, with the time of the machine's monotonic clock, the same in all processes:

    S value partition offset                         sent: the call returned
    H tag value partition offset key id count time   handed out; id: the hand-out's; count: its deliveries
    B tag action time                                a call that settles the job begins
    E tag time result                                it has ended: "ok", or the error's name
    X error                                          another call raised

A tag names one hand-out to one worker: WORKER.NUMBER. Actions are accept, reject, release, uncounted (a
release) and renew.

A worker's time of a hand-out is later than the hand-out, by as long as the worker stood still. So the order
of hand-outs is taken from their ids, and what a worker held for sure from the calls that succeeded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

OK: Final = "ok"
LOST: Final = "LockLost"
_NEVER: Final = 1 << 80
_ENDS: Final = {"accept", "reject", "release", "uncounted"}

Place = tuple[int, int]
"""A partition and an offset."""


class Call:
    """A call of a worker that settles or renews a job."""

    def __init__(self, action: str, began: int) -> None:
        self.action = action
        self.began = began
        self.ended = _NEVER
        self.result: str | None = None  # None: the worker was killed before it returned

    @property
    def is_unknown(self) -> bool:
        """Whether it may have been applied or not."""
        return self.result not in (OK, LOST)


class Delivery:
    """A hand-out, as a worker saw it."""

    def __init__(
        self, tag: str, value: str, place: Place, key: str, number: int, count: int, at: int
    ) -> None:
        self.tag = tag
        self.value = value
        self.place = place
        self.key = key
        self.number = number
        self.count = count
        self.at = at
        self.calls: list[Call] = []

    def did(self, action: str) -> bool:
        """Whether such a call has succeeded."""
        return any(call.action == action and call.result == OK for call in self.calls)

    def may_have(self, action: str) -> bool:
        """Whether such a call has succeeded, or may have."""
        return any(call.action == action and (call.result == OK or call.is_unknown) for call in self.calls)

    @property
    def held_until(self) -> int:
        """When it was held for sure: the begin of the last call that succeeded, 0 if there is none."""
        return max((call.began for call in self.calls if call.result == OK), default=0)

    def ended_by(self, time: int) -> bool:
        """Whether its worker may have given it up by then."""
        return any(call.action in _ENDS and call.began <= time for call in self.calls)

    def __repr__(self) -> str:
        calls = ", ".join(f"{call.action} {call.result}" for call in self.calls)
        return f"{self.tag}: {self.place}, hand-out {self.number}, count {self.count}: {calls or 'no call'}"


class Letter(NamedTuple):
    """A dead letter: the job's value and place, and why it is there."""

    value: str
    place: Place
    deliveries: int
    error: str


class Facts:
    """What the workers have said so far."""

    def __init__(self) -> None:
        self.sent: dict[str, Place] = {}
        self.deliveries: dict[str, Delivery] = {}  # by tag
        self.errors: Counter[str] = Counter()
        self.ended: dict[str, int] = {}  # worker -> before it was told to end, or was killed

    def add(self, line: str) -> None:
        """Take a line."""
        kind, *words = line.split(" ")
        if kind == "S":
            value, partition, offset = words
            assert value not in self.sent
            self.sent[value] = int(partition), int(offset)
        elif kind == "H":
            tag, value, partition, offset, key, number, count, at = words
            assert tag not in self.deliveries
            place = int(partition), int(offset)
            self.deliveries[tag] = Delivery(tag, value, place, key, int(number), int(count), int(at))
        elif kind == "B":
            tag, action, at = words
            self.deliveries[tag].calls.append(Call(action, int(at)))
        elif kind == "E":
            tag, at, result = words
            call = self.deliveries[tag].calls[-1]
            call.ended, call.result = int(at), result
        elif kind == "X":
            self.errors[words[0]] += 1
        else:
            raise AssertionError(f"not a fact: {line!r}")

    def ended_at(self, delivery: Delivery) -> int:
        """When the worker of a hand-out began to end; its jobs are given back from then on."""
        return self.ended.get(delivery.tag.partition(".")[0], _NEVER)

    def was_released(self, delivery: Delivery) -> bool:
        """Whether it was released, counted, also if its worker gave it back meanwhile, as it ended."""
        return delivery.did("release")


class Rules(NamedTuple):
    """How the queue was opened."""

    lock_ms: int
    max_deliveries: int
    ordered_by_key: bool


def faults(facts: Facts, letters: list[Letter], rules: Rules) -> list[str]:
    """Every broken promise, in words. All jobs must have been worked off."""
    by_place: dict[Place, list[Delivery]] = defaultdict(list)
    for delivery in facts.deliveries.values():
        by_place[delivery.place].append(delivery)
    for handed in by_place.values():
        handed.sort(key=lambda each: each.number)
    found = list(_of_ends(facts, by_place, letters, rules))
    for handed in by_place.values():
        found += _of_locks(facts, handed, rules)
        found += _of_counts(facts, handed, rules)
    if rules.ordered_by_key:
        found += _of_order(by_place)
    return found


def _of_ends(
    facts: Facts, by_place: dict[Place, list[Delivery]], letters: list[Letter], rules: Rules
) -> Iterator[str]:
    """Each job ends once: accepted, or as a dead letter."""
    dead: dict[Place, list[Letter]] = defaultdict(list)
    for letter in letters:
        dead[letter.place].append(letter)
        if facts.sent.get(letter.value, letter.place) != letter.place:
            yield f"dead letter of another job: {letter}"
    for place in {*facts.sent.values(), *by_place}:
        handed, buried = by_place.get(place, []), dead.get(place, [])
        for each in handed:
            if facts.sent.get(each.value, place) != place or each.value != handed[0].value:
                yield f"another job's value, {each.value}: {each}"
        accepted = [each for each in handed if each.did("accept")]
        rejected = [each for each in handed if each.did("reject")]
        if len(accepted) > 1:
            yield f"accepted twice: {accepted}"
        if len(buried) > 1:
            yield f"dead letter twice: {buried}"
        if accepted and buried:
            yield f"accepted and a dead letter: {accepted}, {buried}"
        if rejected and not buried:
            yield f"rejected and no dead letter: {rejected}"
        if not buried and not any(each.may_have("accept") for each in handed):
            yield f"lost: {place}: {handed}"
        for letter in buried:
            was_rejected = any(each.may_have("reject") for each in handed)
            if letter.deliveries != rules.max_deliveries and not was_rejected:
                yield f"dead letter without a rejection: {letter}"
    for place in dead.keys() - {*facts.sent.values(), *by_place}:
        if all(letter.deliveries < rules.max_deliveries for letter in dead[place]):
            yield f"dead letter of an unknown job: {dead[place]}"


def _of_locks(facts: Facts, handed: list[Delivery], rules: Rules) -> Iterator[str]:
    """A job is with one worker at a time, and with none after its end."""
    for earlier, later in pairwise(handed):
        if earlier.number == later.number:
            yield f"handed out twice at once: {earlier}; {later}"
        if earlier.did("accept") or earlier.did("reject"):
            yield f"handed out after its end: {earlier}; {later}"
        if earlier.held_until > later.at:
            yield f"handed out while another held it: {earlier}; {later}"
        for call in earlier.calls:
            until = call.began + (rules.lock_ms - 1) * 1_000_000  # locks are kept in whole milliseconds
            if call.action != "renew" or call.result != OK or earlier.ended_by(later.at):
                continue
            if later.at < min(until, facts.ended_at(earlier)):
                yield f"handed out before its renewed lock ran out: {earlier}; {later}"


def _of_counts(facts: Facts, handed: list[Delivery], rules: Rules) -> Iterator[str]:
    """Deliveries are counted, and limited."""
    for each in handed:
        if not 1 <= each.count <= rules.max_deliveries:
            yield f"delivered too often: {each}"
    for earlier, later in pairwise(handed):
        least = earlier.count + facts.was_released(earlier)
        if later.count < least:
            yield f"not counted: {earlier}; {later}"
    counted = 0
    for number, each in enumerate(handed):
        following = handed[number + 1].at if number + 1 < len(handed) else _NEVER
        was_given_back = each.may_have("uncounted") or following >= facts.ended_at(each)
        is_counted = each.did("accept") or each.did("reject") or facts.was_released(each)
        counted += is_counted or not was_given_back
    if counted > rules.max_deliveries:
        yield f"delivered too often, {counted} times: {handed}"


def _of_order(by_place: dict[Place, list[Delivery]]) -> Iterator[str]:
    """While a job is unfinished, no later one of its key is out."""
    by_key: dict[tuple[int, str], list[Delivery]] = defaultdict(list)
    for (partition, _), handed in by_place.items():
        for each in handed:
            by_key[partition, each.key].append(each)
    for of_key in by_key.values():
        of_key.sort(key=lambda each: (each.number, each.place))
        latest = of_key[0]  # of those handed out before, the one with the highest offset
        held = of_key[0]  # and the one that was held for sure for the longest
        for each in of_key[1:]:
            if each.place < latest.place:
                yield f"an earlier job of a key was handed out after a later one: {latest}; {each}"
            elif each.place > latest.place and each.number == latest.number:
                yield f"two jobs of a key at once: {latest}; {each}"
            if held.place < each.place and held.held_until > each.at:
                yield f"handed out while an earlier job of its key was held: {held}; {each}"
            latest = max(latest, each, key=lambda one: (one.place, one.number))
            held = max(held, each, key=lambda one: one.held_until)
