package embedlog;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Share consumers, and the administration of their groups. */
@Timeout(120)
class ShareConsumerTest {
    private static final String BROKER = System.getProperty("bootstrap");
    private static Admin admin;

    private final String topic = "share-" + UUID.randomUUID();
    private final String group = "group-" + topic;
    private final TopicPartition first = new TopicPartition(topic, 0);
    private final TopicPartition second = new TopicPartition(topic, 1);

    @BeforeAll
    static void connect() {
        admin = Admin.create(Map.of("bootstrap.servers", BROKER));
    }

    @AfterAll
    static void disconnect() {
        admin.close();
    }

    @BeforeEach
    void createTopic() throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
        set("share.auto.offset.reset", "earliest");
        set("share.heartbeat.interval.ms", "100");
    }

    private void set(String name, String value) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    /** Sends the numbers below a count, by turns to the two partitions. */
    private Set<String> send(int count) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", BROKER);
        Set<String> values = new TreeSet<>();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, number % 2, null, "" + number));
                values.add("" + number);
            }
        }
        return values;
    }

    private KafkaShareConsumer<String, String> consumer(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", BROKER, "group.id", group));
        for (int at = 0; at < settings.length; at += 2) {
            all.put(settings[at], settings[at + 1]);
        }
        var consumer = new KafkaShareConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private KafkaShareConsumer<String, String> explicitConsumer() {
        return consumer("share.acknowledgement.mode", "explicit");
    }

    private static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        return found;
    }

    private static void commit(KafkaShareConsumer<String, String> consumer) {
        consumer.commitSync().forEach((partition, error) -> assertEquals(Optional.empty(), error));
    }

    /** Where the group is. Clients from 4.2 on have other names for that than 4.1. */
    private Map<TopicPartition, Long> offsets() throws Exception {
        var result = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()));
        Map<?, ?> listed = (Map<?, ?>) ((KafkaFuture<?>) call(result, "partitionsToOffset", group)).get();
        Map<TopicPartition, Long> found = new HashMap<>();
        for (var each : listed.entrySet()) {
            String name = each.getValue() instanceof OffsetAndMetadata ? "offset" : "startOffset";
            found.put((TopicPartition) each.getKey(), (Long) call(each.getValue(), name));
        }
        return found;
    }

    private static Object call(Object of, String prefix, Object... arguments) throws Exception {
        for (var method : of.getClass().getMethods()) {
            if (method.getName().startsWith(prefix) && method.getParameterCount() == arguments.length) {
                return method.invoke(of, arguments);
            }
        }
        throw new NoSuchMethodException(prefix);
    }

    @Test
    void consumersShareTheRecords() throws Exception {
        Set<String> expected = send(1_000);
        List<String> found = new ArrayList<>();
        try (var one = consumer("max.poll.records", "100"); var two = consumer("max.poll.records", "100")) {
            while (found.size() < expected.size()) {
                poll(one).forEach(record -> found.add(record.value()));
                poll(two).forEach(record -> found.add(record.value()));
            }
            commit(one);
            commit(two);
        }
        assertEquals(expected.size(), found.size());
        assertEquals(expected, new TreeSet<>(found));
        assertEquals(Map.of(first, 500L, second, 500L), offsets());
    }

    @Test
    void recordsAreAcceptedReleasedAndRejected() throws Exception {
        send(6);
        List<String> found = new ArrayList<>();
        try (var consumer = explicitConsumer()) {
            while (found.size() < 8) {
                for (var record : poll(consumer)) {
                    boolean again = record.deliveryCount().get() > 1;
                    found.add(record.value() + (again ? " again" : ""));
                    consumer.acknowledge(record, switch (Integer.parseInt(record.value()) % 3) {
                        case 0 -> AcknowledgeType.ACCEPT;
                        case 1 -> again ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE;
                        default -> AcknowledgeType.REJECT;
                    });
                }
                commit(consumer);
            }
        }
        assertEquals(Set.of("0", "1", "2", "3", "4", "5", "1 again", "4 again"), Set.copyOf(found));
        while (!offsets().equals(Map.of(first, 3L, second, 3L))) { // rejected ones are archived in the background
            Thread.onSpinWait();
        }
    }

    @Test
    void whatAConsumerHasNotAcknowledgedGoesToAnother() throws Exception {
        send(4);
        int acquired = 0;
        try (var one = explicitConsumer()) {
            while (acquired == 0) {
                acquired = poll(one).size();
            }
        }
        Set<String> found = new TreeSet<>();
        try (var two = consumer()) {
            while (found.size() < 4) {
                poll(two).forEach(record -> found.add(record.value()));
            }
        }
    }

    @Test
    void locksAreRenewed() throws Exception {
        Optional<AcknowledgeType> renew =
                Arrays.stream(AcknowledgeType.values()).filter(type -> type.name().equals("RENEW")).findFirst();
        assumeTrue(renew.isPresent(), "clients before 4.2 do not renew");
        send(1);
        try (var consumer = explicitConsumer()) {
            List<ConsumerRecord<String, String>> records = poll(consumer);
            while (records.isEmpty()) {
                records = poll(consumer);
            }
            consumer.acknowledge(records.get(0), renew.get());
            commit(consumer);
            records = poll(consumer); // renewed records come once more, from the client itself
            while (records.isEmpty()) {
                records = poll(consumer);
            }
            assertEquals((short) 1, records.get(0).deliveryCount().get());
            consumer.acknowledge(records.get(0), AcknowledgeType.ACCEPT);
            commit(consumer);
        }
        assertEquals(1L, offsets().get(first));
    }

    @Test
    void groupsAreDescribedAlteredAndDeleted() throws Exception {
        send(4);
        try (var consumer = consumer()) {
            int count = 0;
            while (count < 4) {
                count += poll(consumer).size();
            }
            commit(consumer);
            ShareGroupDescription described = admin.describeShareGroups(List.of(group)).all().get().get(group);
            assertEquals(GroupState.STABLE, described.groupState());
            var member = described.members().iterator().next();
            assertEquals(Set.of(first, second), member.assignment().topicPartitions());
            var failed = assertThrows(
                    ExecutionException.class, () -> admin.deleteShareGroups(List.of(group)).all().get());
            assertTrue(failed.getCause() instanceof GroupNotEmptyException);
        }
        while (admin.describeShareGroups(List.of(group)).all().get().get(group).groupState() != GroupState.EMPTY) {
            Thread.onSpinWait();
        }
        var listed = admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE))).all().get();
        assertTrue(listed.stream().anyMatch(each -> each.groupId().equals(group)));
        assertEquals(Map.of(first, 2L, second, 2L), offsets());
        admin.alterShareGroupOffsets(group, Map.of(first, 1L)).all().get();
        assertEquals(Map.of(first, 1L, second, 2L), offsets());
        try (var consumer = consumer()) {
            List<ConsumerRecord<String, String>> records = poll(consumer);
            while (records.isEmpty()) {
                records = poll(consumer);
            }
            assertEquals(List.of("2"), records.stream().map(ConsumerRecord::value).toList());
            commit(consumer);
        }
        while (admin.describeShareGroups(List.of(group)).all().get().get(group).groupState() != GroupState.EMPTY) {
            Thread.onSpinWait();
        }
        admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
        assertEquals(Map.of(), offsets());
        admin.deleteShareGroups(List.of(group)).all().get();
        assertThrows(ExecutionException.class, () -> admin.describeShareGroups(List.of(group)).all().get());
    }
}
