import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Produces an exact number of records to RocketMQ, or consumes them, and prints one JSON line; also creates and deletes topics.
 * Seconds are from the first batch sent until the last acknowledgement, or from the first answer to a poll until the last record is
 * read, for assigning queues takes its client seconds; "timed" counts the records of that time.
 *
 * Client create|delete|produce|consume NAMESERVER BROKER TOPIC QUEUES [RECORDS [PAYLOADS BATCH IN_FLIGHT]]
 */
public final class Client {
    private static final long TIMEOUT_MS = 60_000;
    private static final int PULL = 1000;
    private static final int READ_AHEAD = 20_000;

    public static void main(String[] given) {
        try {
            run(given);
            System.exit(0);
        } catch (Throwable failure) { // threads of the client would keep the process alive
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] given) throws Exception {
        String servers = given[1], broker = given[2], topic = given[3];
        int queues = Integer.parseInt(given[4]);
        switch (given[0]) {
            case "create", "delete" -> administer(given[0], servers, broker, topic, queues);
            case "produce" -> produce(servers, topic, Integer.parseInt(given[5]), values(Path.of(given[6])),
                Integer.parseInt(given[7]), Integer.parseInt(given[8]));
            default -> consume(servers, topic, Integer.parseInt(given[5]));
        }
    }

    private static void administer(String what, String servers, String broker, String topic, int queues) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(servers);
        admin.start();
        if (what.equals("create")) {
            admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues));
            awaitRoute(admin, topic);
        } else {
            admin.deleteTopicInBroker(Set.of(broker), topic);
        }
        System.out.println("{}");
    }

    /** The broker tells the name server a moment later. */
    private static void awaitRoute(DefaultMQAdminExt admin, String topic) throws Exception {
        long until = System.nanoTime() + TIMEOUT_MS * 1_000_000;
        while (true) {
            try {
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (MQClientException unknown) {
                if (System.nanoTime() > until) {
                    throw unknown;
                }
                Thread.sleep(200);
            }
        }
    }

    private static List<byte[]> values(Path payloads) throws Exception {
        List<byte[]> values = new ArrayList<>();
        for (String line : Files.readString(payloads, StandardCharsets.ISO_8859_1).split("\n")) {
            values.add(line.getBytes(StandardCharsets.ISO_8859_1));
        }
        return values;
    }

    private static void produce(String servers, String topic, int records, List<byte[]> values, int batch, int inFlight) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(servers);
        producer.setMaxMessageSize(4 << 20);
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback answered = new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failed.compareAndSet(null, new IllegalStateException(result.getSendStatus().name()));
                }
                room.release();
            }

            @Override public void onException(Throwable error) {
                failed.compareAndSet(null, error);
                room.release();
            }
        };
        long begun = System.nanoTime();
        for (int sent = 0, number = 0; sent < records && failed.get() == null; number++) {
            int count = Math.min(batch, records - sent);
            List<Message> messages = new ArrayList<>(count);
            for (int at = 0; at < count; at++, sent++) {
                messages.add(new Message(topic, values.get(sent % values.size())));
            }
            acquire(room, 1);
            producer.send(messages, queues.get(number % queues.size()), answered, TIMEOUT_MS);
        }
        acquire(room, inFlight);
        double seconds = (System.nanoTime() - begun) / 1e9;
        if (failed.get() != null) {
            throw new IllegalStateException("not stored", failed.get());
        }
        answer(records, records, seconds, 0);
    }

    private static void acquire(Semaphore room, int count) throws InterruptedException {
        if (!room.tryAcquire(count, TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("no acknowledgement for a minute");
        }
    }

    private static void consume(String servers, String topic, int records) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-" + topic);
        consumer.setNamesrvAddr(servers);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); // of a group that has committed nothing
        consumer.setPullBatchSize(PULL);
        consumer.setPullThresholdForQueue(READ_AHEAD);
        consumer.setPullThresholdForAll(8L * READ_AHEAD);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
        consumer.assign(queues);
        long begun = 0, size = 0;
        int seen = 0, first = 0;
        while (seen < records) {
            List<MessageExt> messages = consumer.poll(TIMEOUT_MS);
            if (messages.isEmpty()) {
                throw new IllegalStateException(topic + " ends after " + seen + " records");
            }
            for (MessageExt message : messages) {
                size += message.getBody().length;
            }
            seen += messages.size();
            if (begun == 0) {
                begun = System.nanoTime();
                first = seen;
            }
        }
        answer(seen, seen - first, (System.nanoTime() - begun) / 1e9, size);
    }

    private static void answer(int records, int timed, double seconds, long bytesRead) {
        String text = "{\"records\": %d, \"timed\": %d, \"seconds\": %.6f, \"bytes_read\": %d}%n";
        System.out.printf(Locale.ROOT, text, records, timed, seconds, bytesRead);
    }
}
