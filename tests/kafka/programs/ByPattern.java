import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints the values of all topics that the broker matches with a pattern: BOOTSTRAP GROUP PATTERN, until it ends. */
public final class ByPattern {
    public static void main(String[] asked) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", asked[0], "group.id", asked[1], "group.protocol", "consumer",
            "auto.offset.reset", "earliest");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(new SubscriptionPattern(asked[2]));
            while (true) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(one.value());
                }
            }
        }
    }
}
