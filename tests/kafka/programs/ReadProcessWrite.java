import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies a topic in transactions, as a member of a group whose partitions the broker assigns (KIP-848): BOOTSTRAP GROUP
 * SOURCE TARGET TRANSACTIONAL-ID, until it ends. Prints each value that it has committed.
 */
public final class ReadProcessWrite {
    public static void main(String[] asked) {
        Map<String, Object> reads = Map.of(
            "bootstrap.servers", asked[0], "group.id", asked[1], "group.protocol", "consumer",
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "isolation.level", "read_committed",
            "max.poll.records", 7);
        Map<String, Object> writes = Map.of(
            "bootstrap.servers", asked[0], "transactional.id", asked[4], "linger.ms", 0, "max.block.ms", 200_000,
            "transaction.timeout.ms", 10_000);
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reads, text, text);
                KafkaProducer<String, String> producer =
                    new KafkaProducer<>(writes, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(asked[2]));
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    copy(consumer, producer, records, asked[3]);
                }
            }
        }
    }

    private static void copy(
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer,
            ConsumerRecords<String, String> records,
            String target) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> one : records) {
                producer.send(new ProducerRecord<>(target, one.partition(), null, one.value()));
                offsets.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (ProducerFencedException fenced) {
            throw fenced;
        } catch (KafkaException error) {
            System.out.println("aborted " + error);
            producer.abortTransaction();
            back(consumer);
            return;
        }
        records.forEach(one -> System.out.println("copied " + one.value()));
    }

    /** Goes on behind what the group has committed. */
    private static void back(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition place : consumer.assignment()) {
            OffsetAndMetadata found = committed.get(place);
            consumer.seek(place, found == null ? 0 : found.offset());
        }
    }
}
