#!/usr/bin/env bash
# librdkafka fails every record of a batch with INVALID_TIMESTAMP, and does not say which one has the wrong timestamp.
#
# Seen with confluent-kafka 2.16.1 (librdkafka 2.16.1) beside Apache Kafka 4.3.1, which refuses a batch if one of its
# records is further in the future than message.timestamp.after.max.ms (1 h by default). Its response names the record
# (KIP-467: record_errors), and kafka-python 3.0.12 tells the others that they were only in the same batch. librdkafka
# reports the same error for all three, the two with the present time included: an application that drops or sets aside
# what was refused for good loses valid records.
#
# Needs Java 17 and Maven. Takes about half a minute.
# Output: INVALID_TIMESTAMP INVALID_TIMESTAMP INVALID_TIMESTAMP, kafka-python: KafkaError InvalidTimestampError KafkaError
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "${kafka:-}" 2> /dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'confluent-kafka==2.16.1' 'kafka-python==3.0.12'
cat > "$dir/pom.xml" << 'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version>
  </dependency></dependencies>
</project>
XML
mvn -q -B --color=never -f "$dir/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
  -DoutputDirectory="$dir/jars"
read -r port controller < <(python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listening.getsockname()[1] for listening in sockets))')
cat > "$dir/server.properties" << SETTINGS
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
log.dirs=$dir/log
SETTINGS
run=(java -Xmx512m -cp "$dir/jars/*")
"${run[@]}" kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c "$dir/server.properties" > "$dir/format.log" 2>&1
"${run[@]}" kafka.Kafka "$dir/server.properties" > "$dir/kafka.log" 2>&1 &
kafka=$!
cat > "$dir/finding.py" << 'PYTHON'
import sys
import time

from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

servers = f"127.0.0.1:{sys.argv[1]}"
while True:
    try:
        other = KafkaProducer(bootstrap_servers=servers, bootstrap_timeout_ms=2000, linger_ms=500)
        break
    except KafkaError:
        time.sleep(0.5)
other.send("times", b"the topic is there").get(60)
now_ms = int(time.time() * 1000)
times_ms = [now_ms, now_ms + 10 * 3_600_000, now_ms]  # the second is ten hours ahead

names = []


def note(error, message):
    names.append(error and error.name())


producer = Producer({"bootstrap.servers": servers, "linger.ms": 500, "log_level": 0})
for time_ms in times_ms:
    producer.produce("times", b"value", timestamp=time_ms, on_delivery=note)
producer.flush(60)

told = []
for future in [other.send("times", b"value", timestamp_ms=time_ms) for time_ms in times_ms]:
    try:
        told.append(future.get(60).offset)
    except KafkaError as error:
        told.append(type(error).__name__)
print(*names, end=", kafka-python: ")
print(*told)
PYTHON
expected="INVALID_TIMESTAMP INVALID_TIMESTAMP INVALID_TIMESTAMP, kafka-python: KafkaError InvalidTimestampError KafkaError"
output=$(timeout 300 "$dir/venv/bin/python" "$dir/finding.py" "$port")
echo "$output"
[ "$output" = "$expected" ] || { echo "librdkafka behaves differently now"; exit 1; }
