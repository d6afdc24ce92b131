package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	callSeconds     = 60
	batchesInFlight = 4 // of one stream
)

// One stream on disk with one subject. Mode "": asynchronous publishing, a message and an acknowledgement each.
// Mode "atomic": atomic batches (ADR-50), which the server also syncs as one when it syncs every write.
type natsStream struct {
	name       string
	options    options
	connection *nats.Conn
	jet        jetstream.JetStream
}

func openNats(name string, options options) (stream, error) {
	connection, err := nats.Connect("nats://" + options.address)
	if err != nil {
		return nil, err
	}
	jet, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(options.window))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callSeconds*time.Second)
	defer cancel()
	_, err = jet.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, AllowAtomicPublish: true,
	})
	return &natsStream{name, options, connection, jet}, err
}

func (n *natsStream) produce(values [][]byte, records int) error {
	if n.options.mode == "atomic" {
		return n.produceAtomic(values, records)
	}
	pending := make(chan jetstream.PubAckFuture, n.options.window)
	done := make(chan error, 1)
	go func() { done <- acknowledged(pending) }()
	for sent := 0; sent < records; sent++ {
		future, err := n.jet.PublishAsync(n.name, values[sent%len(values)], jetstream.WithStallWait(callSeconds*time.Second))
		if err != nil {
			return err
		}
		pending <- future
	}
	close(pending)
	return <-done
}

func acknowledged(pending <-chan jetstream.PubAckFuture) error {
	for future := range pending {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		}
	}
	return nil
}

func (n *natsStream) produceAtomic(values [][]byte, records int) error {
	inbox := nats.NewInbox()
	replies, err := n.connection.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	waiting := 0
	for sent := 0; sent < records; sent += n.options.batch {
		if waiting == batchesInFlight {
			if err := committed(replies); err != nil {
				return err
			}
			waiting--
		}
		if err := n.batch(values, sent, min(n.options.batch, records-sent), inbox); err != nil {
			return err
		}
		waiting++
	}
	for ; waiting > 0; waiting-- {
		if err := committed(replies); err != nil {
			return err
		}
	}
	return nil
}

func (n *natsStream) batch(values [][]byte, from, count int, inbox string) error {
	id := nuid.Next()
	for at := 1; at <= count; at++ {
		message := nats.NewMsg(n.name)
		message.Data = values[(from+at-1)%len(values)]
		message.Header["Nats-Batch-Id"] = []string{id}
		message.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(at)}
		if at == count {
			message.Header["Nats-Batch-Commit"] = []string{"1"}
			message.Reply = inbox
		}
		if err := n.connection.PublishMsg(message); err != nil {
			return err
		}
	}
	return n.connection.Flush()
}

func committed(replies *nats.Subscription) error {
	reply, err := replies.NextMsg(callSeconds * time.Second)
	if err != nil {
		return err
	}
	if bytes.Contains(reply.Data, []byte(`"error"`)) {
		return fmt.Errorf("not committed: %s", reply.Data)
	}
	return nil
}

func (n *natsStream) consume(records int) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callSeconds*time.Second)
	defer cancel()
	consumer, err := n.jet.OrderedConsumer(ctx, n.name, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(n.options.batch))
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	size := 0
	for range records {
		message, err := messages.Next()
		if err != nil {
			return 0, err
		}
		size += len(message.Data())
	}
	return size, nil
}

func (n *natsStream) close() { n.connection.Close() }
