"""What all clients of brokers share: connections, their TLS and SASL, settings, and the errors of responses.

connection.py      one connection: requests and responses
versions.py        the versions of requests
security.py        its TLS          sasl.py    its SASL          oauth.py    tokens for SASL
settings.py        ClientSettings, in Kafka's names; addresses
client_config.py   settings from a file, from an address, from the environment
security_names.py  what Java's clients and librdkafka call the settings of security
error_mapping.py   error codes -> embedlog's errors, by the table in wire/error_meanings.py

It knows no topics, groups or partitions. The clients know them: `backends/remote/`, and those in `cluster/`.
"""
