package embedlog;

import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/** Counts the records of each key, exactly once, until it is killed: WordCount BOOTSTRAP NAME STATE_DIRECTORY. */
final class WordCount {
    public static void main(String[] args) throws InterruptedException {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "bootstrap.servers", args[0],
                "application.id", args[1],
                "state.dir", args[2],
                "processing.guarantee", "exactly_once_v2",
                "commit.interval.ms", 200,
                "statestore.cache.max.bytes", 0, // each record gives a count
                "auto.offset.reset", "earliest",
                "session.timeout.ms", 6_000,
                "heartbeat.interval.ms", 1_000));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[1] + "-words", Consumed.with(Serdes.String(), Serdes.String()))
                .groupByKey()
                .count()
                .toStream()
                .to(args[1] + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
