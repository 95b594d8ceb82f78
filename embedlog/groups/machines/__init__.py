"""The state machines of groups and transactions: no I/O, no threads, no clock (time is an argument)."""
