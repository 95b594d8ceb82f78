"""Threads and what they wait for: wakeups, a scheduler, throttles, guards; forks. Knows nothing of logs."""
