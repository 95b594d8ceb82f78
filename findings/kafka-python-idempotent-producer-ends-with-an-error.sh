#!/usr/bin/env bash
# kafka-python's idempotent producer accepts nothing more after one record was refused for good.
#
# Seen with kafka-python 3.0.12 beside Apache Kafka 4.3.1. A record further in the future than
# message.timestamp.after.max.ms (1 h by default) is refused with INVALID_TIMESTAMP. From then on every send of this
# producer fails with that record's error, whatever is sent, until the program makes a new one. Idempotence is the
# default. With enable_idempotence=False the next record gets its offset; so it does with librdkafka's idempotent
# producer (confluent-kafka 2.16.1).
#
# Needs Java 17 and Maven. Takes about half a minute.
# Output: idempotent: InvalidTimestampError InvalidTimestampError InvalidTimestampError, not: InvalidTimestampError ok ok
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "${kafka:-}" 2> /dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'kafka-python==3.0.12'
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

from kafka import KafkaProducer
from kafka.errors import KafkaError

servers = f"127.0.0.1:{sys.argv[1]}"
while True:
    try:
        KafkaProducer(bootstrap_servers=servers, bootstrap_timeout_ms=2000).close()
        break
    except KafkaError:
        time.sleep(0.5)
ahead_ms = int(time.time() * 1000) + 10 * 3_600_000


def told(idempotent: bool) -> str:
    producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=idempotent)
    producer.send("times", b"the topic is there").get(60)
    outcomes = []
    for time_ms in (ahead_ms, None, None):
        try:
            producer.send("times", b"value", timestamp_ms=time_ms).get(60)
            outcomes.append("ok")
        except KafkaError as error:
            outcomes.append(type(error).__name__)
    producer.close(timeout=10)
    return " ".join(outcomes)


print(f"idempotent: {told(True)}, not: {told(False)}")
PYTHON
refused=InvalidTimestampError
output=$(timeout 300 "$dir/venv/bin/python" "$dir/finding.py" "$port")
echo "$output"
[ "$output" = "idempotent: $refused $refused $refused, not: $refused ok ok" ] ||
  { echo "kafka-python behaves differently now"; exit 1; }
