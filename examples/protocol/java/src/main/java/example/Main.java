package example;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.LongStream;

/**
 * A client of LedgerMQ's protocol in Java, levels 1 to 3 of docs/protocol.md, with the tasks of `ledgermq conformance`.
 * Only the generated code of ledgermq.proto, gRPC and Arrow are used.
 */
public final class Main {
    private static final int BATCH_RECORDS = 4;
    private static final int WAIT_MS = 1000;

    private Main() {}

    private static void produce(Client client, String topic, int partition, long first, long count)
        throws InterruptedException {
        Client.Session session = client.open(topic, partition);
        for (long at = first; at < first + count; at += BATCH_RECORDS) {
            List<byte[]> values = LongStream.range(at, Math.min(at + BATCH_RECORDS, first + count))
                .mapToObj(value -> Long.toString(value).getBytes(StandardCharsets.UTF_8)).toList();
            client.produce(session, values);
        }
    }

    private static void fetch(Client client, String topic, int partition, long first, long count)
        throws InterruptedException, IOException {
        long offset = first;
        for (long left = count; left > 0;) {
            Client.Page page = client.fetch(topic, partition, offset, WAIT_MS);
            page.records().stream().limit(left).forEach(record -> print(record.offset() + " ", record));
            left -= page.records().size();
            offset = page.next();
        }
    }

    private static void member(Client client, String topic, String group) throws InterruptedException, IOException {
        AtomicBoolean ended = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                System.in.transferTo(OutputStream.nullOutputStream());
            } catch (IOException error) {
                error.printStackTrace();
            }
            ended.set(true);
        });
        watch.setDaemon(true);
        watch.start();
        new Member(client, group, topic).run(ended::get,
            (partition, record) -> print(partition + " " + record.offset() + " ", record));
    }

    private static void print(String before, Client.Record record) {
        System.out.println(before + new String(record.value(), StandardCharsets.UTF_8));
    }

    public static void main(String[] asked) throws Exception {
        try (Client client = new Client(asked[1])) {
            switch (asked[0]) {
                case "produce" -> produce(client, asked[2], Integer.parseInt(asked[3]), Long.parseLong(asked[4]),
                    Long.parseLong(asked[5]));
                case "fetch" -> fetch(client, asked[2], Integer.parseInt(asked[3]), Long.parseLong(asked[4]),
                    Long.parseLong(asked[5]));
                case "member" -> member(client, asked[2], asked[3]);
                default -> throw new IllegalArgumentException(
                    "there is no task " + asked[0] + ": produce, fetch, member");
            }
        } catch (Client.Refused refused) {
            System.err.println(refused.getMessage());
            System.exit(1);
        }
    }
}
