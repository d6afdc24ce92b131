import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer that does what it is told, line by line: BOOTSTRAP TRANSACTIONAL-ID TIMEOUT-MS. Its answer
 * to each line is "ok", or the name of what was thrown.
 */
public final class Steps {
    private static KafkaProducer<String, String> producer;

    public static void main(String[] asked) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", asked[0], "transactional.id", asked[1],
            "transaction.timeout.ms", Integer.parseInt(asked[2]), "linger.ms", 0, "max.block.ms", 200_000,
            "delivery.timeout.ms", 200_000, "request.timeout.ms", 20_000);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
        }
        producer.close();
    }

    private static String answer(String[] words) {
        try {
            take(words);
            return "ok";
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName();
        }
    }

    private static void take(String[] words) throws Exception {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "send" ->
                producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), null, words[3])).get();
            case "offset" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[1], 0), new OffsetAndMetadata(Long.parseLong(words[3]))),
                new ConsumerGroupMetadata(words[2]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
