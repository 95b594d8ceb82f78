"""The checker of a queue's promises finds each kind of broken promise, and nothing in a run without any."""

from __future__ import annotations

import pytest
from queue_checks import Facts, Letter, Rules, faults

MS = 1_000_000
RULES = Rules(lock_ms=300, max_deliveries=2, ordered_by_key=True)

# A run in which all goes well: of two workers, the first is killed while it has c; d is rejected, and e, of
# the same key, is worked off behind it.
GOOD = f"""
S a 0 0
S b 0 1
S c 0 2
S d 0 3
S e 0 4
H w0.1 a 0 0 k0 1 1 {1 * MS}
B w0.1 accept {2 * MS}
E w0.1 {3 * MS} ok
H w0.2 b 0 1 k1 2 1 {1 * MS}
B w0.2 renew {2 * MS}
E w0.2 {3 * MS} ok
B w0.2 release {10 * MS}
E w0.2 {11 * MS} ok
H w1.1 b 0 1 k1 3 2 {12 * MS}
B w1.1 accept {14 * MS}
E w1.1 {15 * MS} BrokerUnavailable
B w1.1 accept {16 * MS}
E w1.1 {17 * MS} ok
H w0.3 c 0 2 k2 4 1 {20 * MS}
B w0.3 accept {25 * MS}
H w1.2 d 0 3 k3 5 1 {20 * MS}
B w1.2 uncounted {21 * MS}
E w1.2 {22 * MS} ok
H w1.3 d 0 3 k3 6 1 {23 * MS}
B w1.3 reject {24 * MS}
E w1.3 {25 * MS} ok
H w1.4 e 0 4 k3 7 1 {26 * MS}
B w1.4 accept {27 * MS}
E w1.4 {28 * MS} ok
"""
LETTER = Letter("d", (0, 3), 1, "planned")


def found(text: str, *letters: Letter, rules: Rules = RULES) -> list[str]:
    facts = Facts()
    for line in text.strip().splitlines():
        facts.add(line)
    facts.ended["w0"] = 26 * MS
    return [fault.partition(":")[0] for fault in faults(facts, list(letters), rules)]


def with_lines(*lines: str) -> str:
    return GOOD + "\n".join(lines)


def test_nothing_in_a_run_without_faults() -> None:
    assert found(GOOD, LETTER) == []


def without(*lines: str) -> str:
    text = GOOD
    for line in lines:
        assert line in text
        text = text.replace(f"{line}\n", "")
    return text


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        pytest.param(with_lines("S f 0 5"), [LETTER], "lost", id="never handed out"),
        pytest.param(
            changed(f"E w1.4 {28 * MS} ok", f"E w1.4 {28 * MS} LockLost"), [LETTER], "lost", id="not accepted"
        ),
        pytest.param(GOOD, [], "rejected and no dead letter", id="no dead letter"),
        pytest.param(GOOD, [LETTER, LETTER], "dead letter twice", id="dead letter twice"),
        pytest.param(
            GOOD, [LETTER, Letter("a", (0, 0), 2, "")], "accepted and a dead letter", id="accepted and dead"
        ),
        pytest.param(
            GOOD, [LETTER, Letter("c", (0, 2), 1, "")], "dead letter without a rejection", id="dead too soon"
        ),
        pytest.param(
            GOOD, [LETTER, Letter("z", (1, 7), 1, "")], "dead letter of an unknown job", id="unknown"
        ),
        pytest.param(
            GOOD, [LETTER._replace(value="e")], "dead letter of another job", id="another's dead letter"
        ),
        pytest.param(
            with_lines(f"H w1.9 a 0 0 k0 9 2 {40 * MS}", f"B w1.9 accept {41 * MS}", f"E w1.9 {42 * MS} ok"),
            [LETTER],
            "accepted twice",
            id="accepted twice",
        ),
        pytest.param(
            with_lines(f"H w1.9 a 0 0 k0 9 2 {40 * MS}"),
            [LETTER],
            "handed out after its end",
            id="after its end",
        ),
        pytest.param(
            with_lines(f"H w1.9 x 0 0 k0 9 2 {40 * MS}"), [LETTER], "another job's value, x", id="value"
        ),
        pytest.param(
            changed(f"H w1.1 b 0 1 k1 3 2 {12 * MS}", f"H w1.1 b 0 1 k1 3 2 {9 * MS}"),
            [LETTER],
            "handed out while another held it",
            id="while another held it",
        ),
        pytest.param(
            changed(f"H w1.1 b 0 1 k1 3 2 {12 * MS}", f"H w1.1 b 0 1 k1 2 2 {12 * MS}"),
            [LETTER],
            "handed out twice at once",
            id="twice at once",
        ),
        pytest.param(
            without(f"B w0.2 release {10 * MS}", f"E w0.2 {11 * MS} ok"),
            [LETTER],
            "handed out before its renewed lock ran out",
            id="before the lock ran out",
        ),
        pytest.param(
            changed(f"k1 3 2 {12 * MS}", f"k1 3 1 {12 * MS}"), [LETTER], "not counted", id="not counted"
        ),
        pytest.param(
            changed(f"k1 3 2 {12 * MS}", f"k1 3 3 {12 * MS}"), [LETTER], "delivered too often", id="count"
        ),
        pytest.param(
            with_lines(
                f"H w1.7 e 0 4 k3 8 2 {400 * MS}",
                f"H w1.8 e 0 4 k3 9 2 {800 * MS}",
                f"B w1.8 reject {801 * MS}",
                f"E w1.8 {802 * MS} ok",
            ),
            [LETTER, Letter("e", (0, 4), 2, "")],
            "delivered too often, 3 times",
            id="too often",
        ),
        pytest.param(
            with_lines(f"H w1.9 d 0 3 k3 9 1 {40 * MS}"),
            [LETTER],
            "an earlier job of a key was handed out after a later one",
            id="order",
        ),
        pytest.param(
            changed(f"e 0 4 k3 7 1 {26 * MS}", f"e 0 4 k3 6 1 {26 * MS}"),
            [LETTER],
            "two jobs of a key at once",
            id="at once",
        ),
        pytest.param(
            changed(f"e 0 4 k3 7 1 {26 * MS}", f"e 0 4 k3 7 1 {23 * MS}"),
            [LETTER],
            "handed out while an earlier job of its key was held",
            id="an earlier one held",
        ),
    ],
)
def test_finds(text: str, letters: list[Letter], expected: str) -> None:
    assert expected in found(text, *letters)


def test_asks_for_no_order_of_a_queue_that_has_none() -> None:
    text = changed(f"e 0 4 k3 7 1 {26 * MS}", f"e 0 4 k3 7 1 {23 * MS}")
    assert found(text, LETTER, rules=RULES._replace(ordered_by_key=False)) == []


@pytest.mark.parametrize(
    ("ms", "expected"), [(300, ["handed out before its renewed lock ran out"]), (301, [])]
)
def test_locks_are_kept_in_whole_milliseconds(ms: int, expected: list[str]) -> None:
    """b was renewed at 2 ms, for 300 ms, and nobody has released it."""
    text = without(f"B w0.2 release {10 * MS}", f"E w0.2 {11 * MS} ok")
    for line in text.splitlines():
        if " w1.1 " in line:
            text = text.replace(f"{line}\n", "")
    text += "\n".join(
        [f"H w1.1 b 0 1 k1 8 2 {ms * MS}", f"B w1.1 accept {400 * MS}", f"E w1.1 {401 * MS} ok"]
    )
    facts = Facts()
    for line in text.strip().splitlines():
        facts.add(line)
    assert [fault.partition(":")[0] for fault in faults(facts, [LETTER], RULES)] == expected


def test_takes_a_call_for_unknown_whose_worker_was_killed() -> None:
    """c: its accept may have been applied. Were that known to have failed, c would be lost."""
    assert found(with_lines(f"E w0.3 {26 * MS} LockLost"), LETTER) == ["lost"]
