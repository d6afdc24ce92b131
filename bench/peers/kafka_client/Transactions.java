import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.DoubleStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Measures Kafka's transactions with its own Java client, and prints one JSON line.
 *
 * commit: runs transactions through one producer, one after the other, as one producer can. The records of a transaction go to the partitions
 * in turn. Prints the seconds from the first begin until the last commit has returned, and for each transaction the milliseconds of
 * commitTransaction(), which also waits for the records, and those from its begin until then. Transactions that warm the client up come before.
 *
 * beside: a producer without transactions sends records to partition 0 at a rate for some seconds. Prints for each the milliseconds from when
 * it was due until a consumer of committed records has it. With "open", a transaction has written to that partition before, and is committed
 * when the seconds are over; with "none", there is no transaction.
 *
 * Transactions commit ADDRESS TOPIC PARTITIONS PAYLOADS WARM_UP TRANSACTIONS RECORDS [NAME=VALUE ...]
 * Transactions beside ADDRESS TOPIC open|none SECONDS RATE VALUE_BYTES [NAME=VALUE ...]
 */
public final class Transactions {
    private static final long WAIT_NS = 60_000_000_000L;
    private static final int POLL_MS = 100;
    private static final byte[] OPEN = {1};

    public static void main(String[] given) {
        try {
            if (given[0].equals("commit")) {
                commit(given[1], given[2], Integer.parseInt(given[3]), values(Path.of(given[4])), Integer.parseInt(given[5]),
                    Integer.parseInt(given[6]), Integer.parseInt(given[7]), settings(given, 8));
            } else {
                beside(given[1], new TopicPartition(given[2], 0), given[3].equals("open"), Integer.parseInt(given[4]),
                    Integer.parseInt(given[5]), Integer.parseInt(given[6]), settings(given, 7));
            }
            System.exit(0);
        } catch (Throwable failure) { // threads of the client would keep the process alive
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void commit(String address, String topic, int partitions, List<byte[]> values, int warmUp, int transactions, int records,
            Properties settings) throws Exception {
        double[] commits = new double[transactions], wholes = new double[transactions];
        double seconds;
        try (KafkaProducer<byte[], byte[]> producer = producer(address, settings, "bench-" + topic)) {
            producer.initTransactions();
            long start = 0;
            for (int number = -warmUp, sent = 0; number < transactions; number++) {
                long begun = System.nanoTime();
                if (number == 0) {
                    start = begun;
                }
                producer.beginTransaction();
                for (int at = 0; at < records; at++, sent++) {
                    producer.send(new ProducerRecord<>(topic, at % partitions, null, values.get(sent % values.size())));
                }
                long sending = System.nanoTime();
                producer.commitTransaction(); // fails if a record was not stored
                long ended = System.nanoTime();
                if (number >= 0) {
                    commits[number] = (ended - sending) / 1e6;
                    wholes[number] = (ended - begun) / 1e6;
                }
            }
            seconds = (System.nanoTime() - start) / 1e9;
        }
        System.out.printf(Locale.ROOT, "{\"transactions\": %d, \"seconds\": %.6f, \"commit_ms\": %s, \"whole_ms\": %s}%n", transactions, seconds,
            json(commits), json(wholes));
    }

    private static void beside(String address, TopicPartition partition, boolean open, int seconds, int rate, int valueBytes,
            Properties settings) throws Exception {
        int count = seconds * rate;
        double[] latencies = new double[count];
        try (KafkaProducer<byte[], byte[]> plain = producer(address, settings, null);
                KafkaProducer<byte[], byte[]> transactional = open ? producer(address, settings, "bench-" + partition.topic()) : null;
                KafkaConsumer<byte[], byte[]> consumer = consumer(address, partition)) {
            if (open) {
                transactional.initTransactions();
                transactional.beginTransaction();
                transactional.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, OPEN)).get();
            } else {
                plain.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, OPEN)).get();
            }
            long start = System.nanoTime();
            Thread sending = new Thread(() -> send(plain, partition, start, count, rate, valueBytes));
            sending.start();
            boolean ended = !open;
            for (int seen = 0; seen < count;) {
                if (System.nanoTime() - start > seconds * 1_000_000_000L + WAIT_NS) {
                    throw new IllegalStateException("only " + seen + " records of " + count + " came");
                }
                if (!ended && System.nanoTime() - start >= seconds * 1_000_000_000L) {
                    transactional.commitTransaction();
                    ended = true;
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(POLL_MS))) {
                    if (record.value().length > OPEN.length) {
                        latencies[seen++] = (System.nanoTime() - start - ByteBuffer.wrap(record.value()).getLong()) / 1e6;
                    }
                }
            }
            sending.join();
        }
        System.out.printf(Locale.ROOT, "{\"records\": %d, \"latencies_ms\": %s}%n", count, json(latencies));
    }

    /** Each value begins with the nanoseconds after the start at which it was due. */
    private static void send(KafkaProducer<byte[], byte[]> producer, TopicPartition partition, long start, int count, int rate, int valueBytes) {
        List<Future<RecordMetadata>> sent = new ArrayList<>(count);
        try {
            for (int number = 0; number < count; number++) {
                long due = number * 1_000_000_000L / rate;
                long early = due - (System.nanoTime() - start);
                if (early > 0) {
                    Thread.sleep(early / 1_000_000, (int) (early % 1_000_000));
                }
                byte[] value = ByteBuffer.allocate(valueBytes).putLong(due).array();
                sent.add(producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, value)));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        } catch (Exception failure) { // the consumer waits in vain, which ends the process
            failure.printStackTrace();
        }
    }

    /** transactionalId: null for a producer without transactions. */
    private static KafkaProducer<byte[], byte[]> producer(String address, Properties settings, String transactionalId) {
        Properties all = new Properties();
        all.putAll(settings);
        all.put("bootstrap.servers", address);
        if (transactionalId != null) {
            all.put("transactional.id", transactionalId);
            all.put("transaction.timeout.ms", "300000"); // the default, a minute, would end one that is to stay open for a minute
        }
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String address, TopicPartition partition) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        all.put("isolation.level", "read_committed");
        all.put("enable.auto.commit", "false");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
        return consumer;
    }

    private static Properties settings(String[] given, int first) {
        Properties found = new Properties();
        for (int at = first; at < given.length; at++) {
            String[] setting = given[at].split("=", 2);
            found.put(setting[0], setting[1]);
        }
        return found;
    }

    private static List<byte[]> values(Path payloads) throws Exception {
        List<byte[]> values = new ArrayList<>();
        for (String line : Files.readString(payloads, StandardCharsets.ISO_8859_1).split("\n")) {
            values.add(line.getBytes(StandardCharsets.ISO_8859_1));
        }
        return values;
    }

    private static String json(double[] numbers) {
        return DoubleStream.of(numbers).mapToObj(number -> String.format(Locale.ROOT, "%.4f", number)).collect(Collectors.joining(",", "[", "]"));
    }
}
