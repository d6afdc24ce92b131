//! Batches of records: Arrow IPC record batch messages of record schema version 1.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, PrimitiveArray, RecordBatch, TimestampMicrosecondArray, new_null_array,
};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

const END_OF_STREAM: usize = 8;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let nullable = |name: &str, kind: DataType| Field::new(name, kind, true);
    let header = Fields::from(vec![nullable("key", DataType::Utf8), nullable("value", DataType::Binary)]);
    Arc::new(Schema::new(vec![
        nullable("key", DataType::Binary),
        nullable("value", DataType::Binary),
        nullable("headers", DataType::List(Arc::new(nullable("item", DataType::Struct(header))))),
        nullable("timestamp", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        nullable("timestampType", DataType::Int32),
        nullable("tag", DataType::Utf8),
    ]))
});

/// The schema message: a mark of four bytes, the length of what follows in four, and that.
static SCHEMA_MESSAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let writer = StreamWriter::try_new(Vec::new(), &SCHEMA);
    let mut bytes = writer.and_then(|mut writer| writer.finish().and(writer.into_inner())).expect("no batch can fail");
    bytes.truncate(bytes.len() - END_OF_STREAM);
    bytes
});

pub struct Record {
    pub offset: u64,
    pub value: Option<Vec<u8>>,
    pub expires_ms: Option<u64>,
}

/// Return the bytes of a batch of values, without keys, headers and tags.
pub fn encoded(values: &[Vec<u8>], now_us: i64) -> Result<Vec<u8>, ArrowError> {
    let count = values.len();
    let nulls = |column: usize| new_null_array(SCHEMA.field(column).data_type(), count);
    let timestamps = TimestampMicrosecondArray::from_value(now_us, count).with_timezone("UTC");
    let columns: Vec<ArrayRef> = vec![
        nulls(0),
        Arc::new(BinaryArray::from_iter_values(values)),
        nulls(2),
        Arc::new(timestamps),
        Arc::new(PrimitiveArray::<Int32Type>::from_value(0, count)),
        nulls(5),
    ];
    let mut writer = StreamWriter::try_new(Vec::new(), &SCHEMA)?;
    writer.write(&RecordBatch::try_new(SCHEMA.clone(), columns)?)?;
    writer.finish()?;
    let stream = writer.into_inner()?;
    Ok(stream[SCHEMA_MESSAGE.len()..stream.len() - END_OF_STREAM].to_vec())
}

/// Return the records of a batch, the first of which has the offset `base`.
pub fn decoded(message: &[u8], base: u64) -> Result<Vec<Record>, ArrowError> {
    let stream = [SCHEMA_MESSAGE.as_slice(), message].concat();
    let mut reader = StreamReader::try_new(Cursor::new(stream), None)?;
    let batch = reader.next().ok_or_else(|| ArrowError::IpcError("no record batch".to_owned()))??;
    let values = batch.column(1).as_binary::<i32>();
    Ok((0..batch.num_rows())
        .map(|row| Record {
            offset: base + row as u64,
            value: values.is_valid(row).then(|| values.value(row).to_vec()),
            expires_ms: header(&batch, row, "ledgermq.expires-ms").and_then(|text| text.parse().ok()),
        })
        .collect())
}

fn header(batch: &RecordBatch, row: usize, name: &str) -> Option<String> {
    let headers = batch.column(2).as_list::<i32>();
    if headers.is_null(row) {
        return None;
    }
    let pairs = headers.value(row);
    let pairs = pairs.as_struct();
    let (keys, values) = (pairs.column(0).as_string::<i32>(), pairs.column(1).as_binary::<i32>());
    let place = (0..pairs.len()).find(|&place| keys.value(place) == name && values.is_valid(place))?;
    String::from_utf8(values.value(place).to_vec()).ok()
}
