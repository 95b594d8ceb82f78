package embedlog;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Producer, consumer, group and admin, with the client's defaults where nothing else is said. */
@Timeout(120)
class JavaClientTest {
    private static final Map<String, Object> BROKER = Map.of("bootstrap.servers", System.getProperty("bootstrap"));
    private static Admin admin;

    private final String topic = "java-" + UUID.randomUUID();

    @BeforeAll
    static void connect() {
        admin = Admin.create(BROKER);
    }

    @AfterAll
    static void disconnect() {
        admin.close();
    }

    private void createTopic(int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
    }

    private static KafkaProducer<String, String> producer(Map<String, Object> settings) {
        return new KafkaProducer<>(with(settings), new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Map<String, Object> settings) {
        return new KafkaConsumer<>(with(settings), new StringDeserializer(), new StringDeserializer());
    }

    private static Map<String, Object> with(Map<String, Object> settings) {
        Map<String, Object> all = new java.util.HashMap<>(BROKER);
        all.putAll(settings);
        return all;
    }

    /** Sends values "0" to count - 1, keyed by their number modulo 10, and waits for all of them. */
    private void send(int count, Map<String, Object> settings) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = producer(settings)) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "" + number % 10, "" + number)));
            }
        }
        for (Future<RecordMetadata> each : sent) {
            assertTrue(each.get().hasOffset());
        }
    }

    /** Polls until `count` records have come. */
    private static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        while (found.size() < count) {
            consumer.poll(Duration.ofSeconds(1)).forEach(found::add);
        }
        return found;
    }

    private static Set<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(Integer::toString).collect(Collectors.toSet());
    }

    private static Set<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toSet());
    }

    @ParameterizedTest
    @ValueSource(strings = {"none", "gzip", "snappy", "lz4", "zstd"})
    void recordsComeBackWithEachCodec(String codec) throws Exception {
        createTopic(1);
        Instant sentAt = Instant.ofEpochMilli(1_700_000_000_123L);
        var partition = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of("compression.type", codec))) {
            var headers = List.<org.apache.kafka.common.header.Header>of(new RecordHeader("h", new byte[] {1, 2}));
            for (int number = 0; number < 100; number++) {
                String value = number % 3 == 0 ? null : "value " + number;
                producer.send(new ProducerRecord<>(topic, 0, sentAt.toEpochMilli() + number, "k", value, headers));
            }
        }
        try (var consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            consumer.assign(List.of(partition));
            var records = read(consumer, 100);
            assertEquals(100, records.size());
            for (int number = 0; number < 100; number++) {
                var record = records.get(number);
                assertEquals(number, record.offset());
                assertEquals(sentAt.toEpochMilli() + number, record.timestamp());
                assertEquals("k", record.key());
                assertEquals(number % 3 == 0 ? null : "value " + number, record.value());
                assertEquals(2, record.headers().lastHeader("h").value().length);
            }
            var found = consumer.offsetsForTimes(Map.of(partition, sentAt.toEpochMilli() + 40));
            assertEquals(40, found.get(partition).offset());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "consumer"})
    void aGroupGoesOnWhereItHasCommitted(String protocol) throws Exception {
        createTopic(3);
        send(300, Map.of());
        Map<String, Object> member = Map.of(
                "group.id", topic,
                "group.protocol", protocol,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false");
        try (var consumer = consumer(member)) {
            consumer.subscribe(List.of(topic));
            assertEquals(numbers(0, 300), values(read(consumer, 300)));
            consumer.commitSync();
        }
        send(30, Map.of());
        try (var consumer = consumer(member)) {
            consumer.subscribe(List.of(topic));
            var records = read(consumer, 30);
            assertEquals(30, records.size());
            assertEquals(numbers(0, 30), values(records));
        }
        var committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
        assertEquals(300, committed.values().stream().mapToLong(OffsetAndMetadata::offset).sum());
    }

    @Test
    void theBrokerResolvesAPattern() throws Exception {
        createTopic(2);
        send(30, Map.of());
        Map<String, Object> member =
                Map.of("group.id", topic, "group.protocol", "consumer", "auto.offset.reset", "earliest");
        try (var consumer = consumer(member)) {
            consumer.subscribe(new SubscriptionPattern(topic.substring(0, topic.length() - 1) + "."));
            assertEquals(numbers(0, 30), values(read(consumer, 30)));
        }
    }

    @ParameterizedTest
    @CsvSource({"classic,classic", "consumer,consumer", "classic,consumer", "consumer,classic"})
    void twoMembersShareThePartitions(String one, String other) throws Exception {
        createTopic(4);
        try (var first = member(one); var second = member(other)) {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            // Each has two in the end; until then one or the other may have all of them.
            while (first.assignment().size() != 2 || second.assignment().size() != 2) {
                first.poll(Duration.ofMillis(50));
                second.poll(Duration.ofMillis(50));
            }
            var described = admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
            assertEquals(2, described.members().size());
            second.close();
            while (first.assignment().size() != 4) {
                first.poll(Duration.ofMillis(50));
            }
        }
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        var groups = admin.listGroups().all().get();
        assertTrue(groups.stream().noneMatch(group -> group.groupId().equals(topic)));
    }

    private KafkaConsumer<String, String> member(String protocol) {
        return consumer(Map.of("group.id", topic, "group.protocol", protocol, "auto.offset.reset", "earliest"));
    }

    @Test
    void topicsAreCreatedChangedAndDeleted() throws Exception {
        createTopic(1);
        var again = assertThrows(ExecutionException.class, () -> createTopic(1));
        assertTrue(again.getCause() instanceof TopicExistsException);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        assertEquals(3, described.partitions().size());

        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var change = new AlterConfigOp(new ConfigEntry("retention.ms", "12345"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        var settings = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        assertEquals("12345", settings.get("retention.ms").value());

        admin.deleteTopics(List.of(topic)).all().get();
        assertTrue(!admin.listTopics().names().get().contains(topic));
    }

    @Test
    void recordsAreDeletedUpToAnOffset() throws Exception {
        createTopic(1);
        send(20, Map.of("acks", "1", "enable.idempotence", "false"));
        var partition = new TopicPartition(topic, 0);
        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(5))).all().get();
        var earliest = admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get();
        var latest = admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get();
        assertEquals(5, earliest.get(partition).offset());
        assertEquals(20, latest.get(partition).offset());
        try (var consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            consumer.assign(List.of(partition));
            assertEquals(numbers(5, 20), values(read(consumer, 15)));
        }
    }

    @Test
    void theClusterIsDescribed() throws Exception {
        var cluster = admin.describeCluster();
        assertEquals(1, cluster.nodes().get().size());
        assertEquals(22, cluster.clusterId().get().length());
    }

    /** In transaction.version 2, which the broker advertises. */
    @Test
    void transactionsAreCommittedAbortedAndFenced() throws Exception {
        createTopic(2);
        var first = new TopicPartition(topic, 0);
        var second = new TopicPartition(topic, 1);
        Map<String, Object> settings = Map.of("transactional.id", topic);
        try (var producer = producer(settings)) {
            producer.initTransactions();
            for (int number = 0; number < 10; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "a" + number));
                producer.send(new ProducerRecord<>(topic, 1, null, "b" + number));
                var offset = Map.of(first, new OffsetAndMetadata(number + 1));
                producer.sendOffsetsToTransaction(offset, new ConsumerGroupMetadata(topic));
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            try (var consumer = consumer(Map.of("isolation.level", "read_committed", "auto.offset.reset", "earliest"))) {
                consumer.assign(List.of(first, second));
                Set<String> committed = Set.of("a0", "b0", "a2", "b2", "a4", "b4", "a6", "b6", "a8", "b8");
                assertEquals(committed, values(read(consumer, 10)));
            }
            assertEquals(
                    9, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(first).offset());
            var ended = admin.describeTransactions(List.of(topic)).description(topic).get();
            assertEquals(TransactionState.COMPLETE_ABORT, ended.state());
            assertTrue(ended.producerEpoch() >= 10, "each end raises the epoch");

            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, null, "lost")).get();
            var listed = admin.listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING)));
            assertEquals(List.of(topic), listed.all().get().stream().map(each -> each.transactionalId()).toList());
            try (var other = producer(settings)) {
                other.initTransactions();
                assertThrows(KafkaException.class, producer::commitTransaction);
                other.beginTransaction();
                other.send(new ProducerRecord<>(topic, 1, null, "open")).get();
                var active = admin.describeProducers(List.of(second)).partitionResult(second).get().activeProducers();
                var open = active.stream().filter(each -> each.currentTransactionStartOffset().isPresent()).toList();
                assertEquals(1, open.size());
                admin.abortTransaction(new AbortTransactionSpec(
                                second,
                                open.get(0).producerId(),
                                (short) open.get(0).producerEpoch(),
                                open.get(0).coordinatorEpoch().orElse(0)))
                        .all()
                        .get();
                other.abortTransaction();
            }
        }
    }

    @Test
    void leadersAndReplicasOfOneNode() throws Exception {
        createTopic(1);
        var partition = new TopicPartition(topic, 0);
        var elected = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
        assertTrue(elected.get(partition).get() instanceof ElectionNotNeededException);

        var elsewhere = Optional.of(new NewPartitionReassignment(List.of(7)));
        var moved = admin.alterPartitionReassignments(Map.of(partition, elsewhere));
        var refused = assertThrows(ExecutionException.class, () -> moved.all().get());
        assertTrue(refused.getCause() instanceof InvalidReplicaAssignmentException);
        assertTrue(admin.listPartitionReassignments().reassignments().get().isEmpty());

        var quorum = admin.describeMetadataQuorum().quorumInfo().get();
        assertEquals(1, quorum.voters().size());
        assertEquals(quorum.leaderId(), quorum.voters().get(0).replicaId());
    }

    @Test
    void resourcesAndAcls() throws Exception {
        createTopic(1);
        assertTrue(admin.listConfigResources().all().get().contains(new ConfigResource(ConfigResource.Type.TOPIC, topic)));
        var acls = admin.describeAcls(AclBindingFilter.ANY).values();
        var disabled = assertThrows(ExecutionException.class, () -> acls.get());
        assertTrue(disabled.getCause() instanceof SecurityDisabledException);
    }
}
