package embedlog;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Kafka Streams with exactly_once_v2, in a process that is killed again and again. */
@Timeout(400)
class StreamsTest {
    private static final String BOOTSTRAP = System.getProperty("bootstrap");
    private static final int KILLS = 3, AT_ONCE = 500, WORDS = 7;

    private final String name = "streams-" + UUID.randomUUID();

    private Process start(Path directory) throws IOException {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        File said = directory.resolve("said").toFile();
        return new ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), "embedlog.WordCount",
                        BOOTSTRAP, name, directory.resolve("state").toString())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(said))
                .start();
    }

    @Test
    void eachWordIsCountedOnce(@TempDir Path directory) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", BOOTSTRAP))) {
            admin.createTopics(List.of(
                            new NewTopic(name + "-words", 2, (short) 1), new NewTopic(name + "-counts", 2, (short) 1)))
                    .all()
                    .get();
        }
        Random dice = new Random();
        Process counting = start(directory);
        int fed = 0;
        try {
            for (int kill = 0; kill < KILLS; kill++) {
                feed(fed);
                fed += AT_ONCE;
                Thread.sleep(3_000 + dice.nextInt(4_000)); // how far it gets differs, and does not matter
                assertTrue(counting.isAlive(), () -> said(directory));
                counting.destroyForcibly().waitFor();
                counting = start(directory);
            }
            Map<String, List<Long>> counts = counts(fed, counting, directory);
            assertEquals(WORDS, counts.size());
            for (List<Long> ofWord : counts.values()) {
                List<Long> each = LongStream.rangeClosed(1, ofWord.size()).boxed().collect(Collectors.toList());
                assertEquals(each, ofWord);
            }
        } finally {
            counting.destroyForcibly().waitFor();
        }
    }

    private void feed(int from) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", BOOTSTRAP);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = from; number < from + AT_ONCE; number++) {
                producer.send(new ProducerRecord<>(name + "-words", "word " + number % WORDS, "" + number));
            }
        }
    }

    /** The committed counts of each word, in order, when there are as many as records were fed. */
    private Map<String, List<Long>> counts(int fed, Process counting, Path directory) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", BOOTSTRAP, "isolation.level", "read_committed");
        Map<String, List<Long>> counts = new TreeMap<>();
        try (KafkaConsumer<String, Long> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> partitions =
                    List.of(new TopicPartition(name + "-counts", 0), new TopicPartition(name + "-counts", 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            int found = 0;
            while (found < fed) {
                assertTrue(counting.isAlive(), () -> said(directory));
                for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(200))) {
                    counts.computeIfAbsent(record.key(), word -> new ArrayList<>()).add(record.value());
                    found++;
                }
            }
        }
        return counts;
    }

    private static String said(Path directory) {
        try {
            return java.nio.file.Files.readString(directory.resolve("said"));
        } catch (IOException error) {
            return error.toString();
        }
    }
}
