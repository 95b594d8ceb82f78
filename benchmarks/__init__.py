"""How fast embedlog is, next to other stores for a Python program's records.

    python -m benchmarks.run [--quick] [--only TEXT]... [--alone] [--rounds N] [--json FILE]    (`make bench`)
    python -m benchmarks.run [--only TEXT]... --page docs/explanation/performance.md   (whole or in parts)
    python -m benchmarks.in_turns BEFORE [AFTER] [--only TEXT]...    (two checkouts of embedlog)
    python -m benchmarks.in_slices BEFORE [AFTER] [--only TEXT]...   (their everyday calls, in minutes)

How it is measured:

- Side by side, in one run, because a figure alone says more about the machine than about the program. The
  contenders of a row take turns (A B C A B C ...); compare the ratios of their medians. The noise is shown as
  min..max over the rounds: two medians closer than that are equal.
- Next to the rate stands the CPU time per item, in microseconds: of this process with all its threads, and of
  children that have ended; for a broker's rows, of the broker (broker.py) or of both (clients.py); the least
  of the rounds. It varies far less than wall time when other programs run.
- Everything is warm: imports are done, and files stay in the page cache. Before its turn each contender
  creates its store in an empty directory, and fills it if the row reads. Neither that nor closing and
  removing the store is timed. So no store is large, and no row shows how costs grow with size
  (benchmarks.growth does).
- The files are under benchmarks/results, on the disk of the checkout (`--dir` puts them elsewhere): in a
  temporary directory in memory every fsync would be free.
- embedlog is used as its users use it: `embedlog.open` with its defaults, one topic with one partition,
  `append`, `append_many`, `producer`, `read`. Each append is a checksummed batch that readers see on return,
  and the background threads run. Durable means: on disk when the call returns.
- The others are used well, too: one transaction per batch, prepared statements, keys in ascending order.
  sqlite runs in WAL mode, with synchronous=FULL if the row is durable and NORMAL if not; lmdb with and
  without syncing. persist-queue has no batches, so it puts one record per call, and its sqlite queue commits
  durably each time; it gets fewer records, and only its rate counts.
- "raw os.write" writes the same bytes as embedlog, prepared in advance, with one call per batch: the ceiling.
  Raw reading is os.read of the same file, without parsing it.
- Values are 100 bytes of noise, the same for each contender.
"""
