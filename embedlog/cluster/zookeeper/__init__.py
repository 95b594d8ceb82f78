"""ZooKeeper: its paths, the contents of znodes, a client, and servers to run.

paths.py      builds and parses every znode path
contents.py   the contents of znodes: Kafka's JSON
client.py     a session, over kazoo
running.py    runs a server or an ensemble from PySpark's jars
"""
