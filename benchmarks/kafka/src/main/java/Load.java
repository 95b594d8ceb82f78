import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * One load on one broker, by Kafka's own client. Prints numbers, separated by spaces.
 *
 * <pre>
 * create  BOOTSTRAP TOPIC PARTITIONS
 * produce BOOTSTRAP TOPIC RECORDS SIZE CLIENT-SETTING=VALUE...   records/s
 * consume BOOTSTRAP TOPIC RECORDS                                records/s
 * sync    BOOTSTRAP TOPIC PRODUCERS SENDS SIZE                   median, p99 (ms), records/s
 * commit  BOOTSTRAP TOPIC TRANSACTIONS RECORDS SIZE              transactions/s; their records go to 4 partitions
 * </pre>
 *
 * Each load begins with a part that is not measured, for the JIT and the page cache. `sync` has one producer with
 * linger.ms=0 for each thread, which waits for each record: that many connections with one request each.
 */
public final class Load {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "create" -> create(args[1], args[2], Integer.parseInt(args[3]));
            case "produce" -> produce(args);
            case "consume" -> consume(args[1], args[2], Integer.parseInt(args[3]));
            case "sync" -> sync(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]),
                    Integer.parseInt(args[5]));
            case "commit" -> commit(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]),
                    Integer.parseInt(args[5]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void create(String bootstrap, String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        return settings;
    }

    /** Values that look like events: text, which compresses about as far as JSON does. */
    private static byte[][] values(int size) {
        Random random = new Random(7);
        byte[][] values = new byte[1000][];
        for (int i = 0; i < values.length; i++) {
            StringBuilder text = new StringBuilder(size + 64);
            while (text.length() < size) {
                text.append("{\"user\": ").append(random.nextInt(1_000_000))
                        .append(", \"page\": \"/item/").append(random.nextInt(10_000)).append("\"} ");
            }
            values[i] = Arrays.copyOf(text.toString().getBytes(StandardCharsets.US_ASCII), size);
        }
        return values;
    }

    private static void produce(String[] args) {
        int records = Integer.parseInt(args[3]);
        byte[][] values = values(Integer.parseInt(args[4]));
        Properties settings = settings(args[1]);
        for (int i = 5; i < args.length; i++) {
            String[] each = args[i].split("=", 2);
            settings.put(each[0], each[1]);
        }
        int before = records / 4;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            send(producer, args[2], values, before);
            long began = System.nanoTime();
            send(producer, args[2], values, records - before);
            System.out.println((records - before) * 1e9 / (System.nanoTime() - began));
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, byte[][] values, int records) {
        for (int i = 0; i < records; i++) {
            producer.send(new ProducerRecord<>(topic, values[i % values.length]), (metadata, error) -> {
                if (error != null) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
        }
        producer.flush();
    }

    private static void consume(String bootstrap, String topic, int records) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(bootstrap))) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(each -> new TopicPartition(topic, each.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            int before = records / 4;
            int count = 0;
            long began = 0;
            int begins = 0;
            while (count < records) {
                int polled = consumer.poll(Duration.ofSeconds(10)).count();
                if (polled == 0) {
                    throw new IllegalStateException(count + " of " + records + " records came");
                }
                count += polled;
                if (began == 0 && count >= before) {
                    began = System.nanoTime();
                    begins = count;
                }
            }
            System.out.println((count - begins) * 1e9 / (System.nanoTime() - began));
        }
    }

    private static void commit(String bootstrap, String topic, int transactions, int records, int size) {
        byte[][] values = values(size);
        int before = transactions / 4;
        Properties settings = settings(bootstrap);
        settings.put("transactional.id", topic);
        settings.put("linger.ms", "0");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            long began = 0;
            for (int i = 0; i < transactions; i++) {
                if (i == before) {
                    began = System.nanoTime();
                }
                producer.beginTransaction();
                for (int j = 0; j < records; j++) {
                    producer.send(new ProducerRecord<>(topic, j % 4, null, values[j % values.length]));
                }
                producer.commitTransaction();
            }
            System.out.println((transactions - before) * 1e9 / (System.nanoTime() - began));
        }
    }

    private static void sync(String bootstrap, String topic, int producers, int sends, int size) throws Exception {
        byte[] value = values(size)[0];
        int warmUps = Math.max(sends / 4, 1);
        long[][] taken = new long[producers][sends];
        Thread[] threads = new Thread[producers];
        CountDownLatch ready = new CountDownLatch(producers);
        CountDownLatch go = new CountDownLatch(1);
        for (int i = 0; i < producers; i++) {
            long[] mine = taken[i];
            int number = i;
            threads[i] = new Thread(() -> {
                Properties settings = settings(bootstrap);
                settings.put("linger.ms", "0");
                settings.put("acks", "1");
                settings.put("enable.idempotence", "false");
                settings.put("buffer.memory", "65536");
                settings.put("batch.size", "4096");
                try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
                    for (int j = 0; j < warmUps; j++) {
                        producer.send(new ProducerRecord<>(topic, number % 4, null, value)).get();
                    }
                    ready.countDown();
                    go.await();
                    for (int j = 0; j < mine.length; j++) {
                        long began = System.nanoTime();
                        producer.send(new ProducerRecord<>(topic, number % 4, null, value)).get();
                        mine[j] = System.nanoTime() - began;
                    }
                } catch (InterruptedException | ExecutionException error) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            threads[i].start();
        }
        ready.await();
        long began = System.nanoTime();
        go.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        long[] all = Arrays.stream(taken).flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf("%f %f %f%n", all[all.length / 2] / 1e6, all[(int) (all.length * 0.99)] / 1e6,
                all.length / seconds);
    }
}
