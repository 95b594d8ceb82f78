#!/usr/bin/env bash
# kafka-python cannot start on librdkafka's mock cluster: an unknown version of ApiVersions gets a body of no version.
#
# Seen with kafka-python 3.0.12 and confluent-kafka 2.16.1 (librdkafka 2.16.1). kafka-python begins with ApiVersions 4.
# The mock offers up to version 2, and answers UNSUPPORTED_VERSION (35) with 11 bytes after it:
#
#   01 0012 0000 0002 00 00000000
#
# KIP-511 wants a body of version 0 here, with a count of four bytes. These bytes are a flexible version's, with a
# compact array whose length says "empty" (01 instead of 02) in front of one entry. kafka-python cannot decode that,
# closes the connection, and ends with KafkaTimeoutError. With api_version=(2, 6) it skips the question and connects.
#
# Output: KafkaTimeoutError, then: connected with api_version
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'confluent-kafka==2.16.1' 'kafka-python==3.0.12'
cat > "$dir/finding.py" << 'PYTHON'
from confluent_kafka import Producer
from kafka import KafkaConsumer
from kafka.errors import KafkaTimeoutError

mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
broker = next(iter(mock.list_topics().brokers.values()))
servers = f"{broker.host}:{broker.port}"
try:
    KafkaConsumer(bootstrap_servers=servers, bootstrap_timeout_ms=5000).close()
    print("connected")
except KafkaTimeoutError as error:
    print(type(error).__name__)
KafkaConsumer(bootstrap_servers=servers, bootstrap_timeout_ms=5000, api_version=(2, 6)).close()
print("connected with api_version")
PYTHON
output=$("$dir/venv/bin/python" "$dir/finding.py")
echo "$output"
[ "$output" = $'KafkaTimeoutError\nconnected with api_version' ] || { echo "they behave differently now"; exit 1; }
