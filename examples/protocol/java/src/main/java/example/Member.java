package example;

import io.ledgermq.v1.CommitOffsetsRequest;
import io.ledgermq.v1.CommitOffsetsResponse;
import io.ledgermq.v1.CommittedPartition;
import io.ledgermq.v1.Error;
import io.ledgermq.v1.FetchCommittedRequest;
import io.ledgermq.v1.GivenPartition;
import io.ledgermq.v1.GroupHeartbeatRequest;
import io.ledgermq.v1.GroupHeartbeatResponse;
import io.ledgermq.v1.GroupStep;
import io.ledgermq.v1.GroupSubscription;
import io.ledgermq.v1.ListOffsetsRequest;
import io.ledgermq.v1.OffsetCommit;
import io.ledgermq.v1.OffsetQuery;
import io.ledgermq.v1.TopicPartition;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.BiConsumer;
import java.util.function.BooleanSupplier;

/** What level 3 of docs/protocol.md needs: a member of a consumer group, as one loop. */
final class Member {
    private static final int IDLE_MS = 200; // the coordinator holds a heartbeat for so long, while there is nothing to read

    /** `next`: offset to read from; `finished`: committed up to here. */
    private static final class Held {
        final GivenPartition given;
        long next;
        long finished;

        Held(GivenPartition given, long next, long finished) {
            this.given = given;
            this.next = next;
            this.finished = finished;
        }
    }

    private final Client client;
    private final String group;
    private final String topic;
    private final String place;
    private final String id = UUID.randomUUID().toString();
    private Map<String, Held> held = new HashMap<>();
    private long epoch; // group_epoch of the last answer
    private long counter; // of commits; it only grows

    Member(Client client, String group, String topic) {
        this.client = client;
        this.group = group;
        this.topic = topic;
        this.place = "group " + group;
    }

    /** Passes records on until `hasEnded`; then it leaves. */
    void run(BooleanSupplier hasEnded, BiConsumer<Integer, Client.Record> take) throws InterruptedException, IOException {
        GroupStep step = GroupStep.JOIN;
        int waitMs = 0;
        while (true) {
            try {
                heartbeat(step, waitMs);
            } catch (Client.Refused refused) {
                if (!refused.code.equals("UNKNOWN_MEMBER")) throw refused;
                held = new HashMap<>(); // removed: join again, owning nothing
                epoch = 0;
                step = GroupStep.JOIN;
                continue;
            }
            step = GroupStep.STAY;
            waitMs = read(take) ? 0 : IDLE_MS;
            commit();
            if (hasEnded.getAsBoolean()) {
                heartbeat(GroupStep.LEAVE, 0);
                return;
            }
        }
    }

    /** Reports what the member holds, and takes what it is given. All that it gives back is committed already. */
    private void heartbeat(GroupStep step, int waitMs) throws InterruptedException {
        GroupHeartbeatRequest.Builder asked = GroupHeartbeatRequest.newBuilder().setGroup(group).setMemberId(id)
            .setStep(step).setSeenEpoch(epoch).setMaxWaitMs(waitMs);
        held.values().forEach(each -> asked.addOwned(each.given));
        if (step == GroupStep.JOIN) asked.setSubscription(GroupSubscription.newBuilder().addTopics(topic));
        GroupHeartbeatRequest request = asked.build();
        GroupHeartbeatResponse answer = client.retry(place, broker -> broker.groupHeartbeat(request),
            given -> Error.getDefaultInstance());
        if (step == GroupStep.LEAVE) return;
        epoch = answer.getGroupEpoch();
        Map<String, Held> now = new HashMap<>();
        for (GivenPartition given : answer.getAssignedList()) {
            String at = Client.placeOf(given.getTopic(), given.getPartition());
            Held had = held.get(at);
            now.put(at, had != null && had.given.getEpoch() == given.getEpoch() ? had : begin(given));
        }
        held = now;
    }

    /** Finds where to read: at the committed offset, or at the beginning. */
    private Held begin(GivenPartition given) throws InterruptedException {
        TopicPartition at = TopicPartition.newBuilder().setTopic(given.getTopic()).setPartition(given.getPartition()).build();
        FetchCommittedRequest request = FetchCommittedRequest.newBuilder().setGroup(group).addPartitions(at).build();
        CommittedPartition committed = client.retry(place, broker -> broker.fetchCommitted(request),
            answer -> answer.getPartitions(0).getError()).getPartitions(0);
        if (committed.hasOffset()) return new Held(given, committed.getOffset(), committed.getOffset());
        ListOffsetsRequest query = ListOffsetsRequest.newBuilder().addQueries(OffsetQuery.newBuilder()
            .setTopic(given.getTopic()).setPartition(given.getPartition()).setEarliest(true)).build();
        long earliest = client.retry(Client.placeOf(given.getTopic(), given.getPartition()),
            broker -> broker.listOffsets(query), answer -> answer.getResults(0).getError()).getResults(0).getOffset();
        return new Held(given, earliest, 0);
    }

    /** Passes on what is there in each partition; returns whether there was something. */
    private boolean read(BiConsumer<Integer, Client.Record> take) throws InterruptedException, IOException {
        boolean any = false;
        for (Held each : held.values()) {
            Client.Page page = client.fetch(each.given.getTopic(), each.given.getPartition(), each.next, 0);
            page.records().forEach(record -> take.accept(each.given.getPartition(), record));
            any |= !page.records().isEmpty();
            each.next = page.next();
        }
        return any;
    }

    /** Commits what was passed on. A partition that is no longer the member's is refused, and goes with the next answer. */
    private void commit() throws InterruptedException {
        List<Held> moved = new ArrayList<>(held.values());
        moved.removeIf(each -> each.next <= each.finished);
        if (moved.isEmpty()) return;
        CommitOffsetsRequest.Builder asked = CommitOffsetsRequest.newBuilder().setGroup(group).setMemberId(id);
        for (Held each : moved) {
            asked.addCommits(OffsetCommit.newBuilder().setTopic(each.given.getTopic()).setTopicId(each.given.getTopicId())
                .setPartition(each.given.getPartition()).setEpoch(each.given.getEpoch()).setCounter(++counter)
                .setOffset(each.next));
        }
        CommitOffsetsRequest request = asked.build();
        CommitOffsetsResponse answer = client.retry(place, broker -> broker.commitOffsets(request), Member::errorIn);
        for (int row = 0; row < moved.size(); row++) {
            if (answer.getResults(row).getError().getCode().isEmpty()) moved.get(row).finished = moved.get(row).next;
        }
    }

    private static Error errorIn(CommitOffsetsResponse answer) {
        return answer.getResultsList().stream().map(result -> result.getError())
            .filter(error -> !error.getCode().isEmpty() && !Client.exact(error).equals("STALE_ASSIGNMENT"))
            .findFirst().orElse(Error.getDefaultInstance());
    }
}
