package main

import (
	"bytes"
	"context"
	"encoding/json"
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
// Mode "fast": fast ingest (ADR-50), one batch without end whose messages are acknowledged every so many.
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
		Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, AllowAtomicPublish: true, AllowBatchPublish: true,
	})
	return &natsStream{name, options, connection, jet}, err
}

func (n *natsStream) produce(values [][]byte, records int) error {
	switch n.options.mode {
	case "atomic":
		return n.produceAtomic(values, records)
	case "fast":
		return n.produceFast(values, records)
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

// The operations of fast ingest.
const (
	fastStart  = 0
	fastAppend = 1
	fastCommit = 2
)

// The reply subject says all: INBOX.ID.FLOW.GAPS.SEQUENCE.OPERATION.$FI, where a gap fails the batch.
func (n *natsStream) produceFast(values [][]byte, records int) error {
	prefix := nats.NewInbox()
	replies, err := n.connection.SubscribeSync(prefix + ".>")
	if err != nil {
		return err
	}
	prefix = fmt.Sprintf("%s.%s.%d.fail.", prefix, nuid.Next(), n.options.batch)
	acknowledged := 0
	for sequence := 1; sequence <= records; sequence++ {
		for sequence-acknowledged > n.options.window {
			if acknowledged, err = fastAcknowledged(replies); err != nil {
				return err
			}
		}
		operation := fastAppend
		if sequence == records {
			operation = fastCommit
		} else if sequence == 1 {
			operation = fastStart
		}
		reply := prefix + strconv.Itoa(sequence) + "." + strconv.Itoa(operation) + ".$FI"
		if err := n.connection.PublishRequest(n.name, reply, values[(sequence-1)%len(values)]); err != nil {
			return err
		}
	}
	for acknowledged < records {
		if acknowledged, err = fastAcknowledged(replies); err != nil {
			return err
		}
	}
	return nil
}

// Up to which message of the batch the server has stored all. The last answer is that of any publication, with a count.
func fastAcknowledged(replies *nats.Subscription) (int, error) {
	reply, err := replies.NextMsg(callSeconds * time.Second)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
		Seq   int             `json:"seq"`
		Count int             `json:"count"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, err
	}
	if answer.Type == "ack" {
		return answer.Seq, nil
	}
	if answer.Error != nil || answer.Type != "" {
		return 0, fmt.Errorf("not stored: %s", reply.Data)
	}
	return answer.Count, nil
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

func (n *natsStream) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), callSeconds*time.Second)
	defer cancel()
	return n.jet.DeleteStream(ctx, n.name)
}

func (n *natsStream) close() { n.connection.Close() }
