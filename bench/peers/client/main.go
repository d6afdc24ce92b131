// The client of the peers whose own measuring tools cannot be had from a package registry or cannot count: NATS JetStream, RabbitMQ
// streams and Redis Streams, each through the Go client that its own project keeps (Redis: rueidis), and s2-lite, whose Go client could not
// be had, by its wire protocol.
//
// Produces (as fast as it can, or at a pace) or consumes an exact number of records over several streams at once, one connection for each, and prints one JSON line.
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

// A stream that can send records one by one, when they are due.
type pacer interface {
	pace(values [][]byte, records int, first time.Time, every time.Duration) ([]time.Duration, error)
}

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
	case "s2":
		return openS2(name, options)
	}
	return nil, fmt.Errorf("no such peer: %s", peer)
}

func main() {
	var given options
	peer := flag.String("peer", "", "nats, rabbitmq, redis or s2")
	what := flag.String("do", "produce", "produce, pace, consume or remove")
	streams := flag.Int("streams", 8, "how many")
	records := flag.Int("records", 0, "in all streams together")
	rate := flag.Float64("rate", 100, "pace: records a second, in all streams together")
	payloads := flag.String("payloads", "", "a file with a value a line")
	flag.StringVar(&given.address, "address", "", "host:port")
	flag.StringVar(&given.topic, "topic", "bench", "streams are called TOPIC-0, TOPIC-1 …")
	flag.StringVar(&given.mode, "mode", "", "how to send; see each peer")
	flag.IntVar(&given.batch, "batch", 100, "records sent at once")
	flag.IntVar(&given.window, "window", 10000, "records of a stream that may be unacknowledged")
	flag.IntVar(&given.connections, "connections", 1, "of a stream, with Redis")
	flag.Parse()
	if err := run(*peer, *what, *streams, *records, *rate, *payloads, given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(peer, what string, streams, records int, rate float64, payloads string, given options) error {
	var values [][]byte
	if what == "produce" || what == "pace" {
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
	if what == "pace" {
		for _, one := range opened {
			if err := one.produce(values, 1); err != nil {
				return err
			}
		}
	}
	failures := make([]error, streams)
	read := make([]int, streams)
	waits := make([][]time.Duration, streams)
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
			case "pace":
				due := begun.Add(time.Duration(float64(number) / rate * float64(time.Second)))
				every := time.Duration(float64(streams) / rate * float64(time.Second))
				waits[number], failures[number] = one.(pacer).pace(values, share, due, every)
			case "consume":
				read[number], failures[number] = one.consume(share)
			default:
				failures[number] = one.remove()
			}
		}()
	}
	all.Wait()
	seconds := time.Since(begun).Seconds()
	total, latenciesMs := 0, []float64{}
	for number, failure := range failures {
		if failure != nil {
			return fmt.Errorf("stream %d: %w", number, failure)
		}
		total += read[number]
		for _, wait := range waits[number] {
			latenciesMs = append(latenciesMs, wait.Seconds()*1000)
		}
	}
	found := map[string]any{"records": records, "seconds": seconds, "bytes_read": total}
	if what == "pace" {
		found["latencies_ms"] = latenciesMs
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
