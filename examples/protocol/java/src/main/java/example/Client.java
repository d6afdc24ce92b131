package example;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.ledgermq.v1.BrokerGrpc;
import io.ledgermq.v1.Error;
import io.ledgermq.v1.FetchPartition;
import io.ledgermq.v1.FetchRequest;
import io.ledgermq.v1.FetchResponse;
import io.ledgermq.v1.FetchedBatch;
import io.ledgermq.v1.FetchedPartition;
import io.ledgermq.v1.OpenProducerRequest;
import io.ledgermq.v1.OpenProducerResponse;
import io.ledgermq.v1.ProduceBatch;
import io.ledgermq.v1.ProduceHeader;
import io.ledgermq.v1.ProduceRequest;
import io.ledgermq.v1.ProduceResponse;
import io.ledgermq.v1.ProducerSession;
import io.ledgermq.v1.TopicPartition;
import java.io.IOException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.zip.CRC32C;

/** What levels 1 and 2 of docs/protocol.md need: calls that find the owner and are repeated, produce, fetch. */
final class Client implements AutoCloseable {
    /** An error that no retry mends. */
    static final class Refused extends RuntimeException {
        final String code;

        Refused(String code, String text) {
            super(code + ": " + text);
            this.code = code;
        }
    }

    /** What makes a producer idempotent in one partition. `sequence`: how many records it has sent there. */
    static final class Session {
        final TopicPartition place;
        final ByteString id;
        final long openedSlot;
        long sequence;

        Session(TopicPartition place, long openedSlot) {
            byte[] drawn = new byte[16];
            new SecureRandom().nextBytes(drawn);
            this.place = place;
            this.id = ByteString.copyFrom(drawn);
            this.openedSlot = openedSlot;
        }
    }

    record Record(long offset, byte[] value) {}

    record Page(List<Record> records, long next) {}

    private static final int MESSAGE_BYTES_MAX = (33 << 20) + 64;
    private static final int ANSWER_S = 40;
    private static final int ATTEMPTS = 60;
    private static final int REDIRECTS = 3; // in a row, without a pause
    private static final Metadata.Key<byte[]> ERROR =
        Metadata.Key.of("ledgermq-error-bin", Metadata.BINARY_BYTE_MARSHALLER);
    private static final Set<String> RETRIABLE = Set.of("NOT_OWNER", "UNAVAILABLE", "DEADLINE_EXCEEDED",
        "TOPIC_BEING_DELETED", "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "STORE_FULL");
    /** Libraries make each of these of a line that broke during the call. */
    private static final Set<Status.Code> LOST = EnumSet.of(Status.Code.UNAVAILABLE, Status.Code.CANCELLED,
        Status.Code.DEADLINE_EXCEEDED, Status.Code.RESOURCE_EXHAUSTED, Status.Code.INTERNAL, Status.Code.UNKNOWN);

    private final String first;
    private final Map<String, String> owners = new HashMap<>();
    private final Map<String, ManagedChannel> channels = new HashMap<>();

    /** `first`: the address of any broker. */
    Client(String first) {
        this.first = first;
    }

    @Override
    public void close() {
        channels.values().forEach(ManagedChannel::shutdownNow);
    }

    private BrokerGrpc.BrokerBlockingStub broker(String address) {
        ManagedChannel channel = channels.computeIfAbsent(address, at -> NettyChannelBuilder.forTarget(at)
            .usePlaintext()
            .maxInboundMessageSize(MESSAGE_BYTES_MAX)
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(5, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true)
            .build());
        return BrokerGrpc.newBlockingStub(channel).withDeadlineAfter(ANSWER_S, TimeUnit.SECONDS);
    }

    static String placeOf(String topic, int partition) {
        return topic + "-" + Integer.toUnsignedString(partition);
    }

    static String exact(Error failure) {
        return failure.getExactCode().isEmpty() ? failure.getCode() : failure.getExactCode();
    }

    /**
     * Calls the owner of a place: a partition, or the coordinator of a group. Answers name it. `once` must send the same
     * request each time; `errorIn` finds the error of the one partition that was asked for.
     */
    <A> A retry(String place, Function<BrokerGrpc.BrokerBlockingStub, A> once, Function<A, Error> errorIn)
        throws InterruptedException {
        long pauseMs = 50;
        int redirects = 0;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            String address = owners.getOrDefault(place, first);
            Error failure;
            try {
                A answer = once.apply(broker(address));
                failure = errorIn.apply(answer);
                if (failure.getCode().isEmpty()) return answer;
            } catch (StatusRuntimeException error) {
                failure = errorOf(error);
                // A channel waits up to two minutes before it connects again.
                if (channels.containsKey(address)) channels.get(address).resetConnectBackoff();
            }
            if (!RETRIABLE.contains(failure.getCode())) throw new Refused(exact(failure), failure.getMessage());
            if (!failure.getOwner().isEmpty() && !failure.getOwner().equals(address)) {
                owners.put(place, failure.getOwner());
                if (++redirects <= REDIRECTS) continue; // more: two brokers name each other
            } else {
                owners.remove(place);
                redirects = 0;
            }
            Thread.sleep(Math.max(pauseMs, failure.getRetryAfterMs()));
            pauseMs = Math.min(2 * pauseMs, 2000);
        }
        throw new Refused("UNAVAILABLE", "the owner of " + place + " did not answer");
    }

    /** Returns the broker's error, which a trailer carries. A status without it came from gRPC itself. */
    private static Error errorOf(StatusRuntimeException failed) {
        byte[] sent = failed.getTrailers() == null ? null : failed.getTrailers().get(ERROR);
        if (sent != null) {
            try {
                return Error.parseFrom(sent);
            } catch (InvalidProtocolBufferException error) {
                throw new IllegalStateException(error);
            }
        }
        String code = LOST.contains(failed.getStatus().getCode()) ? "UNAVAILABLE" : "NO_BROKER";
        return Error.newBuilder().setCode(code).setMessage(String.valueOf(failed.getMessage())).build();
    }

    Session open(String topic, int partition) throws InterruptedException {
        TopicPartition place = TopicPartition.newBuilder().setTopic(topic).setPartition(partition).build();
        OpenProducerRequest request = OpenProducerRequest.newBuilder().addPartitions(place).build();
        OpenProducerResponse answer = retry(placeOf(topic, partition), broker -> broker.openProducer(request),
            opened -> opened.getPartitions(0).getError());
        return new Session(place, answer.getPartitions(0).getOpenedSlot());
    }

    /** Stores the values once, however often the call is repeated; returns the offset of the first one. */
    long produce(Session session, List<byte[]> values) throws InterruptedException {
        byte[] payload = Batches.encode(values);
        ProducerSession producer = ProducerSession.newBuilder().setId(session.id).setSequence(session.sequence)
            .setOpenedSlot(session.openedSlot).build();
        ProduceBatch batch = ProduceBatch.newBuilder().setTopic(session.place.getTopic())
            .setPartition(session.place.getPartition()).setLength(payload.length).setCrc(crc(payload, 0, payload.length))
            .setRecordCount(values.size()).setSchema(1).setProducer(producer).build();
        ProduceRequest request = ProduceRequest.newBuilder().setHeader(ProduceHeader.newBuilder().addBatches(batch))
            .setPayload(ByteString.copyFrom(payload)).build();
        ProduceResponse answer = retry(placeOf(batch.getTopic(), batch.getPartition()),
            broker -> broker.produceOnce(request), stored -> stored.getResults(0).getError());
        session.sequence += values.size();
        return answer.getResults(0).getBaseOffset();
    }

    /** Returns records from an offset on, and the offset that follows them. Waits so long for a first one. */
    Page fetch(String topic, int partition, long offset, int waitMs) throws InterruptedException, IOException {
        FetchRequest request = FetchRequest.newBuilder().setMaxWaitMs(waitMs).addPartitions(
            FetchPartition.newBuilder().setTopic(topic).setPartition(partition).setOffset(offset)).build();
        FetchResponse answer = retry(placeOf(topic, partition), broker -> broker.fetchOnce(request), Client::errorIn);
        FetchedPartition found = answer.getHeader().getPartitions(0);
        byte[] payload = answer.getPayload().toByteArray();
        List<Record> records = new ArrayList<>();
        long next = Math.max(offset, found.getNextOffset());
        int at = 0;
        for (FetchedBatch batch : found.getBatchesList()) {
            byte[] message = java.util.Arrays.copyOfRange(payload, at, at += batch.getLength());
            for (Batches.Row row : Batches.decode(message)) {
                long place = batch.getBaseOffset() + row.row();
                if (place >= offset) records.add(new Record(place, row.value())); // the first batch may begin below it
            }
            next = Math.max(next, batch.getBaseOffset() + batch.getRecordCount());
        }
        return new Page(records, next);
    }

    private static Error errorIn(FetchResponse answer) {
        FetchedPartition found = answer.getHeader().getPartitions(0);
        byte[] payload = answer.getPayload().toByteArray();
        int at = 0;
        for (FetchedBatch batch : found.getBatchesList()) {
            if (crc(payload, at, batch.getLength()) != batch.getCrc()) {
                return Error.newBuilder().setCode("UNAVAILABLE").setMessage("a batch came damaged").build();
            }
            at += batch.getLength();
        }
        return found.getError();
    }

    private static int crc(byte[] data, int at, int length) {
        CRC32C crc = new CRC32C();
        crc.update(data, at, length);
        return (int) crc.getValue();
    }
}
