#!/usr/bin/env bash
# librdkafka writes MaxTimestamp 0 into the header of a batch whose timestamps are all negative.
#
# Seen with confluent-kafka 2.16.1 (librdkafka 2.16.1) on its own mock cluster, which stores batches as they come. Three
# records at -5,000, -4,000 and -3,000 ms (1969) leave in a batch with FirstTimestamp -5000 and MaxTimestamp 0. The
# largest timestamp in it is -3000. A store that believes the header takes these records for some of 1970-01-01, and
# retention by time may delete them. A broker has to recompute the header from the records, as Apache Kafka does.
#
# Output: first -5000 max 0
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'confluent-kafka==2.16.1'
cat > "$dir/finding.py" << 'PYTHON'
import socket
import struct

from confluent_kafka import Producer

producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "linger.ms": 200, "log_level": 0})
for timestamp_ms in (-5000, -4000, -3000):
    producer.produce("times", b"value", partition=0, timestamp=timestamp_ms)
producer.flush()
broker = next(iter(producer.list_topics().brokers.values()))

# Fetch 4, by hand, since clients hide the header: replica -1, wait 100 ms, 1 to 1,048,576 bytes, read_uncommitted;
# one topic, its partition 0 from offset 0.
fetch = struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
fetch += struct.pack(">ih5s", 1, 5, b"times") + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
request = struct.pack(">hhih1s", 1, 4, 1, 1, b"c") + fetch
with socket.create_connection((broker.host, broker.port)) as connection:
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    response = connection.recv(size, socket.MSG_WAITALL)

# correlation id 4, throttle time 4, count 4, topic 2 + 5, count 4, partition 4, error 2, two offsets 16, aborted
# transactions 4 (null or none), size of the records 4
batch = response[4 + 4 + 4 + 7 + 4 + 4 + 2 + 16 + 4 + 4 :]
assert batch[16] == 2, "no record batch of version 2"
first_timestamp, max_timestamp = struct.unpack_from(">qq", batch, 27)
print("first", first_timestamp, "max", max_timestamp)
PYTHON
output=$("$dir/venv/bin/python" "$dir/finding.py")
echo "$output"
[ "$output" = "first -5000 max 0" ] || { echo "librdkafka behaves differently now"; exit 1; }
