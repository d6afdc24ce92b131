import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartition;

/** Sets the start offset of a share group in a partition: BOOTSTRAP GROUP TOPIC PARTITION OFFSET. */
public final class ShareOffset {
    public static void main(String[] asked) throws Exception {
        TopicPartition place = new TopicPartition(asked[2], Integer.parseInt(asked[3]));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", asked[0]))) {
            admin.alterShareGroupOffsets(asked[1], Map.of(place, Long.parseLong(asked[4]))).all().get();
        }
        System.out.println("set");
    }
}
