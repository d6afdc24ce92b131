import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Works as a member of a share group (KIP-932) until it ends: BOOTSTRAP GROUP TOPIC MILLISECONDS-EACH. Releases each
 * message whose value begins with "again" at its first delivery, rejects each that begins with "bad", and accepts all
 * others. Prints "got VALUE" of each; and once the broker has said so, "done VALUE DELIVERIES" of what counts, and
 * "late VALUE" of what does not, or may not.
 */
public final class ShareWork {
    public static void main(String[] asked) throws InterruptedException {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", asked[0], "group.id", asked[1], "share.acknowledgement.mode", "explicit",
            "max.poll.records", 10, "client.id", "worker");
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(asked[2]));
            say("subscribed");
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                for (ConsumerRecord<String, String> one : records) {
                    say("got " + one.value());
                    Thread.sleep(Long.parseLong(asked[3]));
                    consumer.acknowledge(one, word(one));
                }
                if (!records.isEmpty()) {
                    tell(records, consumer.commitSync());
                }
            }
        }
    }

    private static AcknowledgeType word(ConsumerRecord<String, String> one) {
        if (one.value().startsWith("again") && one.deliveryCount().orElseThrow() == 1) {
            return AcknowledgeType.RELEASE;
        }
        return one.value().startsWith("bad") ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
    }

    private static void tell(
            ConsumerRecords<String, String> records, Map<TopicIdPartition, Optional<KafkaException>> results) {
        for (TopicPartition place : records.partitions()) {
            Optional<KafkaException> failed = results.entrySet().stream()
                .filter(each -> each.getKey().topicPartition().equals(place))
                .map(Map.Entry::getValue)
                .findFirst()
                .orElse(Optional.of(new KafkaException("there is no result for " + place)));
            for (ConsumerRecord<String, String> one : records.records(place)) {
                String kind = word(one) == AcknowledgeType.RELEASE ? "released" : "done";
                say(failed.isEmpty()
                    ? kind + " " + one.value() + " " + one.deliveryCount().orElseThrow()
                    : "late " + one.value() + " " + failed.get());
            }
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
