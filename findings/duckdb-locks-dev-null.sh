#!/usr/bin/env bash
# DuckDB's COPY ... TO locks what it writes to, devices too: two processes cannot write to /dev/null at the same time.
#
# Seen with duckdb 2.0.1 on Linux. While one process runs COPY ... TO '/dev/null', another one's fails with
# "Could not set lock on file "/dev/null": Conflicting lock is held in ... (PID ...)". So does '/dev/stdout' where both
# have standard output on /dev/null or on the same terminal, as programs have that are started by one script. A lock of
# a device protects nothing. Write to a pipe, or to a file of your own.
#
# Output: IO Error: Could not set lock on file "/dev/null": Conflicting lock is held
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "${first:-}" 2> /dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'duckdb==2.0.1'
cat > "$dir/copy.py" << 'PYTHON'
import sys

import duckdb

duckdb.execute("SET enable_progress_bar = false")
duckdb.execute(f"COPY (SELECT * FROM range({sys.argv[1]})) TO '/dev/null' (FORMAT csv)")
PYTHON
"$dir/venv/bin/python" "$dir/copy.py" 100000000000 &
first=$!
for _ in {1..30}; do # until the first one has begun
  "$dir/venv/bin/python" "$dir/copy.py" 10 2> "$dir/error" || break
  sleep 0.2
done
kill -0 "$first" || { echo "the first COPY has ended"; exit 1; }
grep -o 'IO Error: Could not set lock on file "/dev/null": Conflicting lock is held' "$dir/error" ||
  { echo "DuckDB behaves differently now"; exit 1; }
kill "$first"
wait "$first" 2> /dev/null || "$dir/venv/bin/python" "$dir/copy.py" 10 # alone it works
