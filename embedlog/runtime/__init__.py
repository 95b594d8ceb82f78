"""Threads and what they wait for: locks, wakeups, schedulers, throttles. Knows nothing of logs."""
