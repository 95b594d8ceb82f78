"""What `embedlog demo` shows: real input, a real kill -9, a group and Spark.

    run.py        the demo from beginning to end, and what it prints
    flights.py    its input: the flights that left New York in 2013
    loader.py     the process that loads them, and is killed
    spark.py      its last part

cli/demo.py is its command. It needs the extra `demo`, and `spark` for the last part.
"""
