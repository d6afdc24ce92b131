// A batch is a record batch message of Arrow IPC: a stream without its schema in front and its end of 8 bytes behind.
package main

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

const endBytes = 8

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "key", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "headers", Nullable: true, Type: arrow.ListOf(arrow.StructOf(
		arrow.Field{Name: "key", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true}))},
	{Name: "timestamp", Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, Nullable: true},
	{Name: "timestampType", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "tag", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

var front, end = emptyStream()

func emptyStream() ([]byte, []byte) {
	var stream bytes.Buffer
	if err := ipc.NewWriter(&stream, ipc.WithSchema(schema)).Close(); err != nil {
		panic(err)
	}
	cut := stream.Len() - endBytes
	return stream.Bytes()[:cut], stream.Bytes()[cut:]
}

func encodeBatch(values [][]byte) ([]byte, error) {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	now := arrow.Timestamp(time.Now().UnixMicro())
	for _, value := range values {
		builder.Field(0).AppendNull()
		builder.Field(1).(*array.BinaryBuilder).Append(value)
		builder.Field(2).(*array.ListBuilder).Append(true)
		builder.Field(3).(*array.TimestampBuilder).Append(now)
		builder.Field(4).(*array.Int32Builder).Append(0)
		builder.Field(5).AppendNull()
	}
	batch := builder.NewRecordBatch()
	defer batch.Release()
	var stream bytes.Buffer
	writer := ipc.NewWriter(&stream, ipc.WithSchema(schema))
	if err := writer.Write(batch); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return stream.Bytes()[len(front) : stream.Len()-endBytes], nil
}

// decodeBatch returns the records that have not expired; their offsets are their rows.
func decodeBatch(message []byte) ([]Record, error) {
	stream := bytes.Join([][]byte{front, message, end}, nil)
	reader, err := ipc.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	defer reader.Release()
	if !reader.Next() {
		return nil, fmt.Errorf("there is no batch in the message: %w", reader.Err())
	}
	rows := reader.RecordBatch()
	values, headers := rows.Column(1).(*array.Binary), rows.Column(2).(*array.List)
	var records []Record
	for row := range int(rows.NumRows()) {
		if !isExpired(headers, row) {
			records = append(records, Record{uint64(row), bytes.Clone(values.Value(row))})
		}
	}
	return records, nil
}

func isExpired(headers *array.List, row int) bool {
	first, last := headers.ValueOffsets(row)
	entries := headers.ListValues().(*array.Struct)
	names, values := entries.Field(0).(*array.String), entries.Field(1).(*array.Binary)
	for at := int(first); at < int(last); at++ {
		if names.Value(at) == "ledgermq.expires-ms" {
			expires, err := strconv.ParseInt(string(values.Value(at)), 10, 64)
			return err == nil && expires <= time.Now().UnixMilli()
		}
	}
	return false
}
