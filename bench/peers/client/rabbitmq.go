package main

import (
	"fmt"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	streams "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const (
	credits = 50
	// The default of 8 KiB is below one segment of the loopback interface: every read then waits for a timer of TCP.
	socketBytes = 1 << 20
)

// One producer or consumer for each connection, as the client's page of best practices says for throughput.
// Mode: "" sends each message as an entry of its own; "sub", "sub-lz4" pack a batch into one entry (sub-entry batching).
type rabbit struct {
	name        string
	options     options
	environment *streams.Environment
}

func openRabbit(name string, options options) (stream, error) {
	host, port, err := net.SplitHostPort(options.address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	environment, err := streams.NewEnvironment(streams.NewEnvironmentOptions().SetHost(host).SetPort(number).SetReadBuffer(socketBytes).SetWriteBuffer(socketBytes).
		SetAddressResolver(streams.AddressResolver{Host: host, Port: number}))
	if err != nil {
		return nil, err
	}
	if err := environment.DeclareStream(name, streams.NewStreamOptions()); err != nil && err != streams.StreamAlreadyExists {
		return nil, err
	}
	return &rabbit{name, options, environment}, nil
}

func (r *rabbit) producer(batch int) (*streams.Producer, error) {
	settings := streams.NewProducerOptions().SetBatchSize(batch).SetQueueSize(r.options.window)
	if r.options.mode != "" {
		settings.SetSubEntrySize(r.options.batch)
		if r.options.mode == "sub-lz4" {
			settings.SetCompression(streams.Compression{}.Lz4())
		}
	}
	return r.environment.NewProducer(r.name, settings)
}

func (r *rabbit) produce(values [][]byte, records int) error {
	producer, err := r.producer(r.options.batch)
	if err != nil {
		return err
	}
	confirmations := producer.NotifyPublishConfirmation()
	done := make(chan error, 1)
	go func() { done <- confirmed(confirmations, records) }()
	messages := make([]message.StreamMessage, 0, r.options.batch)
	for sent := 0; sent < records; sent++ {
		messages = append(messages, amqp.NewMessage(values[sent%len(values)]))
		if len(messages) == r.options.batch || sent == records-1 {
			if err := producer.BatchSend(messages); err != nil {
				return err
			}
			messages = messages[:0]
		}
	}
	return <-done
}

func confirmed(confirmations streams.ChannelPublishConfirm, records int) error {
	for seen := 0; seen < records; {
		for _, each := range <-confirmations {
			if !each.IsConfirmed() {
				return fmt.Errorf("not confirmed: %w", each.GetError())
			}
			seen++
		}
	}
	return nil
}

func (r *rabbit) consume(records int) (int, error) {
	var seen, size atomic.Int64
	done := make(chan struct{})
	handle := func(_ streams.ConsumerContext, message *amqp.Message) {
		for _, part := range message.Data {
			size.Add(int64(len(part)))
		}
		if seen.Add(1) == int64(records) {
			close(done)
		}
	}
	settings := streams.NewConsumerOptions().SetOffset(streams.OffsetSpecification{}.First()).SetInitialCredits(credits)
	if _, err := r.environment.NewConsumer(r.name, handle, settings); err != nil {
		return 0, err
	}
	<-done
	return int(size.Load()), nil
}

func (r *rabbit) remove() error { return r.environment.DeleteStream(r.name) }

func (r *rabbit) close() { _ = r.environment.Close() }
