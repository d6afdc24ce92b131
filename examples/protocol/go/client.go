// What levels 1 and 2 of docs/protocol.md need: calls that find the owner and are repeated, produce, fetch.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example/ledgermq/v1"
)

const (
	messageBytesMax = 33<<20 + 64
	answerMax       = 40 * time.Second
	attemptsMax     = 60
	redirectsMax    = 3 // in a row, without a pause
	waitMs          = 1000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var retriable = map[string]bool{"NOT_OWNER": true, "UNAVAILABLE": true, "DEADLINE_EXCEEDED": true,
	"TOPIC_BEING_DELETED": true, "RESOURCE_EXHAUSTED": true, "QUOTA_EXCEEDED": true, "STORE_FULL": true}

// Refused is an error that no retry mends.
type Refused struct{ Code, Message string }

func (refused Refused) Error() string { return refused.Code + ": " + refused.Message }

// Client talks to the brokers of a cluster. One goroutine uses it.
type Client struct {
	first   string // any of the brokers
	owners  map[string]string
	brokers map[string]pb.BrokerClient
}

func newClient(address string) *Client {
	return &Client{address, map[string]string{}, map[string]pb.BrokerClient{}}
}

func (client *Client) broker(address string) (pb.BrokerClient, error) {
	if found := client.brokers[address]; found != nil {
		return found, nil
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = 2 * time.Second // the default waits for two minutes
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)))
	if err != nil {
		return nil, err
	}
	client.brokers[address] = pb.NewBrokerClient(connection)
	return client.brokers[address], nil
}

type call func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error)

// retry calls the owner of a place: a partition, or the coordinator of a group. Answers name it. The call must send the
// same request each time.
func (client *Client) retry(place string, once call) error {
	pause, redirects := 50*time.Millisecond, 0
	for attempt := 0; attempt < attemptsMax; attempt++ {
		address, known := client.owners[place]
		if !known {
			address = client.first
		}
		broker, err := client.broker(address)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), answerMax)
		var trailer metadata.MD
		failure, err := once(ctx, broker, grpc.Trailer(&trailer))
		cancel()
		if err != nil {
			failure = errorOf(err, trailer)
		}
		if failure.GetCode() == "" {
			return nil
		}
		if code := exact(failure); !retriable[failure.Code] {
			return Refused{code, failure.Message}
		}
		if failure.Owner != "" && failure.Owner != address {
			client.owners[place] = failure.Owner
			if redirects++; redirects <= redirectsMax { // more: two brokers name each other
				continue
			}
		} else {
			delete(client.owners, place)
			redirects = 0
		}
		time.Sleep(max(pause, time.Duration(failure.RetryAfterMs)*time.Millisecond))
		pause = min(2*pause, 2*time.Second)
	}
	return fmt.Errorf("the owner of %s did not answer", place)
}

func exact(failure *pb.Error) string {
	if failure.ExactCode != "" {
		return failure.ExactCode
	}
	return failure.Code
}

// errorOf returns the broker's error, which a trailer carries. A status without it came from gRPC itself.
func errorOf(err error, trailer metadata.MD) *pb.Error {
	for _, value := range trailer.Get("ledgermq-error-bin") {
		found := &pb.Error{}
		if proto.Unmarshal([]byte(value), found) == nil {
			return found
		}
	}
	switch status.Code(err) { // libraries make each of these of a line that broke during the call
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unknown:
		return &pb.Error{Code: "UNAVAILABLE", Message: err.Error()}
	}
	return &pb.Error{Code: "NO_BROKER", Message: err.Error()}
}

// Session makes a producer idempotent in one partition.
type Session struct {
	topic      string
	partition  uint32
	id         []byte
	sequence   uint64 // records sent before
	openedSlot uint64
}

func (client *Client) openSession(topic string, partition uint32) (*Session, error) {
	session := &Session{topic: topic, partition: partition, id: make([]byte, 16)}
	rand.Read(session.id)
	request := &pb.OpenProducerRequest{Partitions: []*pb.TopicPartition{{Topic: topic, Partition: partition}}}
	err := client.retry(placeOf(topic, partition), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		answer, err := broker.OpenProducer(ctx, request, options...)
		if err != nil {
			return nil, err
		}
		session.openedSlot = answer.Partitions[0].OpenedSlot
		return answer.Partitions[0].Error, nil
	})
	return session, err
}

// Produce stores the values once, however often the call is repeated, and returns the offset of the first one.
func (client *Client) Produce(session *Session, values [][]byte) (uint64, error) {
	payload, err := encodeBatch(values)
	if err != nil {
		return 0, err
	}
	batch := &pb.ProduceBatch{
		Topic: session.topic, Partition: session.partition, Length: uint32(len(payload)),
		Crc: crc32.Checksum(payload, castagnoli), RecordCount: uint32(len(values)), Schema: 1,
		Producer: &pb.ProducerSession{Id: session.id, Sequence: session.sequence, OpenedSlot: session.openedSlot},
	}
	request := &pb.ProduceRequest{Header: &pb.ProduceHeader{Batches: []*pb.ProduceBatch{batch}}, Payload: payload}
	var offset uint64
	err = client.retry(placeOf(session.topic, session.partition), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		answer, err := broker.ProduceOnce(ctx, request, options...)
		if err != nil {
			return nil, err
		}
		offset = answer.Results[0].BaseOffset
		return answer.Results[0].Error, nil
	})
	if err == nil {
		session.sequence += uint64(len(values))
	}
	return offset, err
}

// Record is one that came from a broker.
type Record struct {
	Offset uint64
	Value  []byte
}

// Fetch returns records from an offset on, and the offset that follows them. It waits for so long for a first one.
func (client *Client) Fetch(topic string, partition uint32, offset uint64, waitMs uint32) ([]Record, uint64, error) {
	want := &pb.FetchPartition{Topic: topic, Partition: partition, Offset: offset}
	request := &pb.FetchRequest{Partitions: []*pb.FetchPartition{want}, MaxWaitMs: waitMs}
	var answer *pb.FetchResponse
	err := client.retry(placeOf(topic, partition), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		var err error
		if answer, err = broker.FetchOnce(ctx, request, options...); err != nil {
			return nil, err
		}
		for at, batch := 0, 0; batch < len(answer.Header.Partitions[0].Batches); batch++ {
			found := answer.Header.Partitions[0].Batches[batch]
			if crc32.Checksum(answer.Payload[at:at+int(found.Length)], castagnoli) != found.Crc {
				return &pb.Error{Code: "UNAVAILABLE", Message: "a batch came damaged"}, nil
			}
			at += int(found.Length)
		}
		return answer.Header.Partitions[0].Error, nil
	})
	if err != nil {
		return nil, offset, err
	}
	var records []Record
	next, at := max(offset, answer.Header.Partitions[0].NextOffset), 0
	for _, batch := range answer.Header.Partitions[0].Batches {
		found, err := decodeBatch(answer.Payload[at : at+int(batch.Length)])
		if err != nil {
			return nil, offset, err
		}
		for _, record := range found {
			record.Offset += batch.BaseOffset
			if record.Offset >= offset { // the first batch may begin below it
				records = append(records, record)
			}
		}
		at += int(batch.Length)
		next = max(next, batch.BaseOffset+uint64(batch.RecordCount))
	}
	return records, next, nil
}

func placeOf(topic string, partition uint32) string { return fmt.Sprintf("%s-%d", topic, partition) }
