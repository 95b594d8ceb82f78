"""How fast embedlog is, beside what else a Python program might keep its records in.

    python -m benchmarks.run [--quick] [--only TEXT]... [--alone] [--rounds N] [--json FILE]    (`make bench`)
    python -m benchmarks.in_turns BEFORE [AFTER] [--only TEXT]...    (two checkouts of embedlog)

How it is measured:

- Side by side, in one run, since a figure by itself says more about the machine than about the program:
  each row's contenders take turns (A B C A B C ...), and what counts is the ratio of their medians. The
  noise is shown as min..max over the rounds: two medians closer than that are equal.
- Beside it stands the processor time of one item, in microseconds: of this process with all its threads, and
  of children that have ended. It moves far less than time on the wall where other programs run.
- Everything is warm: imports are done, files are in the page cache, nothing is dropped from it. Before its
  turn each contender makes its store anew, in an empty directory, and fills it if it is to be read; that,
  closing and removing it are not timed. So no store is ever large: how costs grow with size is not shown.
- The files are under benchmarks/results, on the disk of the checkout (`--dir` puts them elsewhere): a
  temporary directory in memory would make every fsync free.
- embedlog is used as its users use it: `embedlog.open` with its defaults, one topic with one partition,
  `append`, `append_many`, `producer`, `read`. Each of its appends is a checksummed batch that readers see on
  return, and its background threads run. Durable means: on the medium when the call returns.
- The others are used well, too: one transaction a batch, prepared statements, keys in ascending order.
  sqlite's WAL runs with synchronous=NORMAL where nothing is asked to be durable, and with FULL where it is;
  lmdb without and with syncing. persist-queue has no batches, so it puts one by one, and its sqlite queue
  commits durably each time; it is given fewer records, the rate is what counts.
- "raw os.write" writes the same bytes as embedlog, ready made, with one call a batch: the ceiling. Reading
  raw is os.read of the same file, without looking at what it says.
- Values are 100 bytes of noise, the same in each contender.
"""
