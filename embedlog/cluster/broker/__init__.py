"""The broker: Kafka's requests, executed on a log.

dispatch.py        a frame -> the handler of its API -> a frame
handlers/          the request handlers, over a BrokerContext: log, groups, cluster, settings
guards/            wrap the handlers: what a request may do, by a table of all APIs
access/            who a client is, and what the ACLs allow it
peers/             requests to other brokers: markers and permissions of transactions
metrics.py         Prometheus metrics and health over HTTP
endpoints.py       where it listens; served_log.py: what it serves
broker.py          puts these together
owner.py           the same without a port: the socket in a log's directory, for other processes
"""
