#!/usr/bin/env bash
# After `import polars`, Ctrl-C no longer interrupts a wait for a threading.Lock that has no timeout.
#
# Seen with polars 2.1.0 and CPython 3.11 on Linux. CPython installs its handler of SIGINT without SA_RESTART, so the
# system call in an untimed Lock.acquire() ends with EINTR and KeyboardInterrupt follows at once. polars puts a handler
# of its own in front, with SA_RESTART: the system call goes on, and KeyboardInterrupt waits until another
# thread releases the lock. A wait with a timeout is interrupted when its timeout ends.
#
# Output: before: at once, then: after: when the lock was released
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'polars==2.1.0'
cat > "$dir/finding.py" << 'PYTHON'
import os
import signal
import threading
import time

signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted() -> str:
    lock = threading.Lock()
    lock.acquire()
    released = threading.Event()

    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2)
        released.set()
        lock.release()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        lock.acquire()
        time.sleep(1)  # the exception comes before the next instruction at the latest
    except KeyboardInterrupt:
        outcome = "when the lock was released" if released.is_set() else "at once"
    else:
        outcome = "never"
    thread.join()
    return outcome


print("before:", interrupted())
import polars  # noqa: E402, F401

print("after:", interrupted())
PYTHON
output=$("$dir/venv/bin/python" "$dir/finding.py")
echo "$output"
[ "$output" = $'before: at once\nafter: when the lock was released' ] || { echo "polars behaves differently now"; exit 1; }
