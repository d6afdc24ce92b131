// A client of LedgerMQ's protocol in Go, levels 1 to 3 of docs/protocol.md, with the tasks of `ledgermq conformance`.
//
// Only the generated code of ledgermq.proto, gRPC and Arrow are used; each call has one partition, and nothing is done
// at once. It shows what a client must do, not how fast one can be.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
)

const batchRecords = 4

func number(text string) uint64 {
	found, err := strconv.ParseUint(text, 10, 64)
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func produce(client *Client, topic string, partition uint32, first, count uint64) {
	session, err := client.openSession(topic, partition)
	check(err)
	for at := first; at < first+count; at += batchRecords {
		var values [][]byte
		for value := at; value < min(at+batchRecords, first+count); value++ {
			values = append(values, []byte(strconv.FormatUint(value, 10)))
		}
		_, err := client.Produce(session, values)
		check(err)
	}
}

func fetch(client *Client, topic string, partition uint32, offset, count uint64) {
	for count > 0 {
		records, next, err := client.Fetch(topic, partition, offset, waitMs)
		check(err)
		for _, record := range records[:min(count, uint64(len(records)))] {
			fmt.Println(record.Offset, string(record.Value))
		}
		count -= min(count, uint64(len(records)))
		offset = next
	}
}

func member(client *Client, topic, group string) {
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		close(ended)
	}()
	check(newMember(client, group, topic).Run(ended, func(partition uint32, record Record) {
		fmt.Println(partition, record.Offset, string(record.Value))
	}))
}

func main() {
	asked := os.Args[1:]
	client := newClient(asked[1])
	switch asked[0] {
	case "produce":
		produce(client, asked[2], uint32(number(asked[3])), number(asked[4]), number(asked[5]))
	case "fetch":
		fetch(client, asked[2], uint32(number(asked[3])), number(asked[4]), number(asked[5]))
	case "member":
		member(client, asked[2], asked[3])
	default:
		check(fmt.Errorf("there is no task %s: produce, fetch, member", asked[0]))
	}
}
