"""Threads and what they wait for: wakeups, a scheduler, throttles, thread guards. Knows nothing of logs."""
