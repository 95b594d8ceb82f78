"""What is known of ZooKeeper: its paths, what stands in them, a client for it, and a server to run.

paths.py      builds and parses every znode path          no I/O
contents.py   what stands in them: Kafka's JSON           no I/O
client.py     a session with a server, over kazoo
running.py    starts a server, or an ensemble of them, out of the jars that PySpark brings
"""
