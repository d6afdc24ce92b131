// The client of the peers whose own measuring tools cannot be had from a package registry or cannot count: NATS JetStream, RabbitMQ
// streams and Redis Streams, each through the Go client that its own project keeps (Redis: rueidis).
//
// Produces or consumes an exact number of records over several streams at once, one connection for each, and prints one JSON line.
// Seconds are from the first record sent until the last acknowledgement, or until the last record is read; connecting is left out.
// It must not know LedgerMQ.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"
)

// A stream with its own connection. Several of them work at once.
type stream interface {
	// produce returns when all records are acknowledged; it sends values[0], values[1] … over and over.
	produce(values [][]byte, records int) error
	// consume returns when so many records were read from the beginning of the stream, with their values' bytes in all.
	consume(records int) (int, error)
	// remove deletes the stream with all its records.
	remove() error
	close()
}

type options struct {
	address, topic, mode       string
	batch, window, connections int
}

func open(peer, name string, options options) (stream, error) {
	switch peer {
	case "nats":
		return openNats(name, options)
	case "rabbitmq":
		return openRabbit(name, options)
	case "redis":
		return openRedis(name, options)
	}
	return nil, fmt.Errorf("no such peer: %s", peer)
}

func main() {
	var given options
	peer := flag.String("peer", "", "nats, rabbitmq or redis")
	what := flag.String("do", "produce", "produce, consume or remove")
	streams := flag.Int("streams", 8, "how many")
	records := flag.Int("records", 0, "in all streams together")
	payloads := flag.String("payloads", "", "a file with a value a line")
	flag.StringVar(&given.address, "address", "", "host:port")
	flag.StringVar(&given.topic, "topic", "bench", "streams are called TOPIC-0, TOPIC-1 …")
	flag.StringVar(&given.mode, "mode", "", "how to send; see each peer")
	flag.IntVar(&given.batch, "batch", 100, "records sent at once")
	flag.IntVar(&given.window, "window", 10000, "records of a stream that may be unacknowledged")
	flag.IntVar(&given.connections, "connections", 1, "of a stream, with Redis")
	flag.Parse()
	if err := run(*peer, *what, *streams, *records, *payloads, given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(peer, what string, streams, records int, payloads string, given options) error {
	var values [][]byte
	if what == "produce" {
		text, err := os.ReadFile(payloads)
		if err != nil {
			return err
		}
		values = bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	}
	opened := make([]stream, streams)
	for number := range opened {
		one, err := open(peer, fmt.Sprintf("%s-%d", given.topic, number), given)
		if err != nil {
			return err
		}
		defer one.close()
		opened[number] = one
	}
	failures := make([]error, streams)
	read := make([]int, streams)
	var all sync.WaitGroup
	begun := time.Now()
	for number, one := range opened {
		share := records / streams
		if number < records%streams {
			share++
		}
		all.Add(1)
		go func() {
			defer all.Done()
			switch what {
			case "produce":
				failures[number] = one.produce(values, share)
			case "consume":
				read[number], failures[number] = one.consume(share)
			default:
				failures[number] = one.remove()
			}
		}()
	}
	all.Wait()
	seconds := time.Since(begun).Seconds()
	total := 0
	for number, failure := range failures {
		if failure != nil {
			return fmt.Errorf("stream %d: %w", number, failure)
		}
		total += read[number]
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"records": records, "seconds": seconds, "bytes_read": total})
}
