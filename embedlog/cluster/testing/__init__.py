"""A broker for the tests of programs: it stops, starts again and fails on demand."""
