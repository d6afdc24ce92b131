import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
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
 * Client timed NAMESERVER BROKER TOPIC QUEUES RECORDS PAYLOADS IN_FLIGHT RATE DUE_MS
 * Client late NAMESERVER BROKER TOPIC QUEUES RECORDS
 *
 * "timed" sends messages one by one that are all delivered at DUE_MS; or RATE messages a second that are delivered 2 to 10 s after
 * they are sent, if RATE is not 0. A message begins with its due time. "late" reads them as they come, prints "warm" when it is
 * ready, and how late they were.
 */
public final class Client {
    private static final long TIMEOUT_MS = 60_000;
    private static final int PULL = 1000;
    private static final int READ_AHEAD = 20_000;
    private static final int AHEAD_MS_MIN = 2_000;
    private static final int AHEAD_MS_MAX = 10_000;
    private static final long SILENCE_MS_MAX = 180_000;

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
            case "timed" -> timed(servers, topic, Integer.parseInt(given[5]), values(Path.of(given[6])),
                Integer.parseInt(given[7]), Double.parseDouble(given[8]), Long.parseLong(given[9]));
            case "late" -> late(servers, topic, Integer.parseInt(given[5]));
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

    private static DefaultMQProducer producer(String servers) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(servers);
        producer.setMaxMessageSize(4 << 20);
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.start();
        return producer;
    }

    private static SendCallback answered(Semaphore room, AtomicReference<Throwable> failed) {
        return new SendCallback() {
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
    }

    private static void produce(String servers, String topic, int records, List<byte[]> values, int batch, int inFlight) throws Exception {
        DefaultMQProducer producer = producer(servers);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback answered = answered(room, failed);
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

    private static void timed(String servers, String topic, int records, List<byte[]> values, int inFlight, double rate, long dueMs)
        throws Exception {
        DefaultMQProducer producer = producer(servers);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback answered = answered(room, failed);
        Random chance = new Random(7);
        long begun = System.nanoTime();
        for (int sent = 0; sent < records && failed.get() == null; sent++) {
            long at = dueMs;
            if (rate != 0) {
                long wait = begun + (long) (sent / rate * 1e9) - System.nanoTime();
                TimeUnit.NANOSECONDS.sleep(Math.max(0, wait));
                at = System.currentTimeMillis() + AHEAD_MS_MIN + chance.nextInt(AHEAD_MS_MAX - AHEAD_MS_MIN);
            }
            byte[] body = values.get(sent % values.size()).clone();
            ByteBuffer.wrap(body).putLong(at);
            Message message = new Message(topic, body);
            message.setDeliverTimeMs(at);
            acquire(room, 1);
            producer.send(message, queues.get(sent % queues.size()), answered, TIMEOUT_MS);
        }
        acquire(room, inFlight);
        double seconds = (System.nanoTime() - begun) / 1e9;
        if (failed.get() != null) {
            throw new IllegalStateException("not stored", failed.get());
        }
        answer(records, records, seconds, 0);
    }

    private static void late(String servers, String topic, int records) throws Exception {
        DefaultLitePullConsumer consumer = consumer(servers, topic);
        System.out.println("warm");
        long[] lateMs = new long[records];
        long heard = System.currentTimeMillis();
        int seen = 0;
        while (seen < records) {
            List<MessageExt> messages = consumer.poll(1_000);
            long now = System.currentTimeMillis();
            if (messages.isEmpty() && now - heard > SILENCE_MS_MAX) {
                throw new IllegalStateException(topic + ": no message after " + seen);
            }
            heard = messages.isEmpty() ? heard : now;
            for (MessageExt message : messages) {
                lateMs[seen++] = now - ByteBuffer.wrap(message.getBody()).getLong();
            }
        }
        double ended = heard / 1e3;
        Arrays.sort(lateMs);
        long early = Arrays.stream(lateMs).filter(late -> late < 0).count();
        String text = "{\"records\": %d, \"p50_ms\": %d, \"p99_ms\": %d, \"max_ms\": %d, \"early\": %d, \"ended_at_s\": %.3f}%n";
        System.out.printf(Locale.ROOT, text, records, lateMs[records / 2], lateMs[records * 99 / 100], lateMs[records - 1], early, ended);
    }

    private static void acquire(Semaphore room, int count) throws InterruptedException {
        if (!room.tryAcquire(count, TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("no acknowledgement for a minute");
        }
    }

    private static DefaultLitePullConsumer consumer(String servers, String topic) throws Exception {
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
        return consumer;
    }

    private static void consume(String servers, String topic, int records) throws Exception {
        DefaultLitePullConsumer consumer = consumer(servers, topic);
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
