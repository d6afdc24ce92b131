package example;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.arrow.compression.CommonsCompressionFactory;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/** A batch is a record batch message of Arrow IPC: a stream without its schema in front and its end of 8 bytes behind. */
final class Batches {
    record Row(int row, byte[] value) {}

    private static final int END_BYTES = 8;
    private static final BufferAllocator MEMORY = new RootAllocator();
    private static final ArrowType BINARY = new ArrowType.Binary(), TEXT = new ArrowType.Utf8();
    private static final Schema SCHEMA = new Schema(List.of(
        Field.nullable("key", BINARY),
        Field.nullable("value", BINARY),
        new Field("headers", FieldType.nullable(new ArrowType.List()), List.of(
            new Field("item", FieldType.nullable(new ArrowType.Struct()),
                List.of(Field.nullable("key", TEXT), Field.nullable("value", BINARY))))),
        Field.nullable("timestamp", new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC")),
        Field.nullable("timestampType", new ArrowType.Int(32, true)),
        Field.nullable("tag", TEXT)));
    private static final byte[] FRONT, END;

    static {
        byte[] example = stream(List.of(new byte[0]));
        // An encapsulated message: a mark of 4 bytes, the length of what follows in 4 bytes, and that; no body.
        FRONT = Arrays.copyOf(example, 8 + ByteBuffer.wrap(example).order(ByteOrder.LITTLE_ENDIAN).getInt(4));
        END = Arrays.copyOfRange(example, example.length - END_BYTES, example.length);
    }

    private Batches() {}

    private static byte[] stream(List<byte[]> values) {
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        try (VectorSchemaRoot rows = VectorSchemaRoot.create(SCHEMA, MEMORY)) {
            long nowUs = System.currentTimeMillis() * 1000;
            rows.allocateNew();
            for (int row = 0; row < values.size(); row++) {
                ((VarBinaryVector) rows.getVector("value")).setSafe(row, values.get(row));
                ListVector headers = (ListVector) rows.getVector("headers");
                headers.startNewValue(row);
                headers.endValue(row, 0);
                ((TimeStampMicroTZVector) rows.getVector("timestamp")).setSafe(row, nowUs);
                ((IntVector) rows.getVector("timestampType")).setSafe(row, 0);
            }
            rows.setRowCount(values.size());
            try (ArrowStreamWriter writer = new ArrowStreamWriter(rows, null, Channels.newChannel(written))) {
                writer.writeBatch();
                writer.end();
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return written.toByteArray();
    }

    static byte[] encode(List<byte[]> values) {
        byte[] stream = stream(values);
        return Arrays.copyOfRange(stream, FRONT.length, stream.length - END_BYTES);
    }

    /** Returns the records that have not expired. */
    static List<Row> decode(byte[] message) throws IOException {
        ByteArrayOutputStream stream = new ByteArrayOutputStream();
        stream.write(FRONT);
        stream.write(message);
        stream.write(END);
        List<Row> found = new ArrayList<>();
        ByteArrayInputStream source = new ByteArrayInputStream(stream.toByteArray());
        try (ArrowStreamReader reader = new ArrowStreamReader(source, MEMORY, CommonsCompressionFactory.INSTANCE)) {
            reader.loadNextBatch();
            VectorSchemaRoot rows = reader.getVectorSchemaRoot();
            VarBinaryVector values = (VarBinaryVector) rows.getVector("value");
            for (int row = 0; row < rows.getRowCount(); row++) {
                if (!isExpired((List<?>) rows.getVector("headers").getObject(row))) {
                    found.add(new Row(row, values.isNull(row) ? new byte[0] : values.get(row)));
                }
            }
        }
        return found;
    }

    private static boolean isExpired(List<?> headers) {
        for (Object header : headers == null ? List.of() : headers) {
            Map<?, ?> entry = (Map<?, ?>) header;
            if (entry.get("key").toString().equals("ledgermq.expires-ms")) {
                String expires = new String((byte[]) entry.get("value"), StandardCharsets.UTF_8);
                return Long.parseLong(expires) <= System.currentTimeMillis();
            }
        }
        return false;
    }
}
