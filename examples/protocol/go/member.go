// What level 3 of docs/protocol.md needs: a member of a consumer group, as one loop.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"

	"google.golang.org/grpc"

	pb "example/ledgermq/v1"
)

const idleMs = 200 // the coordinator holds a heartbeat for so long, while there is nothing to read

type held struct {
	given    *pb.GivenPartition
	next     uint64 // offset to read from
	finished uint64 // committed up to here
}

// Member reads partitions that the coordinator gives to it, and commits what it has passed on.
type Member struct {
	client  *Client
	group   string
	id      string
	topic   string
	epoch   uint64 // group_epoch of the last answer
	counter uint64 // of commits; it only grows
	held    map[string]*held
}

func newMember(client *Client, group, topic string) *Member {
	id := make([]byte, 16)
	rand.Read(id)
	return &Member{client: client, group: group, id: hex.EncodeToString(id), topic: topic, held: map[string]*held{}}
}

func (member *Member) place() string { return "group " + member.group }

// Run passes records on until `ended` is closed; then it commits and leaves.
func (member *Member) Run(ended <-chan struct{}, take func(partition uint32, record Record)) error {
	step, wait := pb.GroupStep_JOIN, uint32(0)
	for {
		err := member.heartbeat(step, wait)
		var refused Refused
		if errors.As(err, &refused) && refused.Code == "UNKNOWN_MEMBER" { // removed: join again, owning nothing
			member.held, member.epoch, step = map[string]*held{}, 0, pb.GroupStep_JOIN
			continue
		}
		if err != nil {
			return err
		}
		step = pb.GroupStep_STAY
		read, err := member.read(take)
		if err != nil {
			return err
		}
		if err := member.commit(); err != nil {
			return err
		}
		if wait = 0; read == 0 {
			wait = idleMs
		}
		select {
		case <-ended:
			return member.heartbeat(pb.GroupStep_LEAVE, 0)
		default:
		}
	}
}

// heartbeat reports what the member holds, and takes what it is given. All that it gives back is committed already.
func (member *Member) heartbeat(step pb.GroupStep, wait uint32) error {
	request := &pb.GroupHeartbeatRequest{Group: member.group, MemberId: member.id, Step: step, SeenEpoch: member.epoch,
		MaxWaitMs: wait}
	for _, held := range member.held {
		request.Owned = append(request.Owned, held.given)
	}
	if step == pb.GroupStep_JOIN {
		request.Subscription = &pb.GroupSubscription{Topics: []string{member.topic}}
	}
	var answer *pb.GroupHeartbeatResponse
	err := member.client.retry(member.place(), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		var err error
		answer, err = broker.GroupHeartbeat(ctx, request, options...)
		return nil, err
	})
	if err != nil || step == pb.GroupStep_LEAVE {
		return err
	}
	member.epoch = answer.GroupEpoch
	before := member.held
	member.held = map[string]*held{}
	for _, given := range answer.Assigned {
		place := placeOf(given.Topic, given.Partition)
		if had := before[place]; had != nil && had.given.Epoch == given.Epoch {
			member.held[place] = had
		} else if member.held[place], err = member.begin(given); err != nil {
			return err
		}
	}
	return nil
}

// begin finds where to read: at the committed offset, or at the beginning.
func (member *Member) begin(given *pb.GivenPartition) (*held, error) {
	at := &pb.TopicPartition{Topic: given.Topic, Partition: given.Partition}
	request := &pb.FetchCommittedRequest{Group: member.group, Partitions: []*pb.TopicPartition{at}}
	var committed *pb.CommittedPartition
	err := member.client.retry(member.place(), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		answer, err := broker.FetchCommitted(ctx, request, options...)
		if err != nil {
			return nil, err
		}
		committed = answer.Partitions[0]
		return committed.Error, nil
	})
	if err != nil {
		return nil, err
	}
	if committed.Offset != nil {
		return &held{given, *committed.Offset, *committed.Offset}, nil
	}
	query := &pb.OffsetQuery{Topic: given.Topic, Partition: given.Partition, At: &pb.OffsetQuery_Earliest{Earliest: true}}
	earliest := uint64(0)
	err = member.client.retry(placeOf(given.Topic, given.Partition), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		answer, err := broker.ListOffsets(ctx, &pb.ListOffsetsRequest{Queries: []*pb.OffsetQuery{query}}, options...)
		if err != nil {
			return nil, err
		}
		earliest = answer.Results[0].Offset
		return answer.Results[0].Error, nil
	})
	return &held{given, earliest, 0}, err
}

// read passes on what is there in each partition, and returns how many records that are.
func (member *Member) read(take func(partition uint32, record Record)) (int, error) {
	count := 0
	for _, held := range member.held {
		records, next, err := member.client.Fetch(held.given.Topic, held.given.Partition, held.next, 0)
		if err != nil {
			return count, err
		}
		for _, record := range records {
			take(held.given.Partition, record)
		}
		held.next, count = next, count+len(records)
	}
	return count, nil
}

// commit commits what was passed on. A partition that is no longer the member's is refused, and goes with the next answer.
func (member *Member) commit() error {
	request := &pb.CommitOffsetsRequest{Group: member.group, MemberId: member.id}
	var sent []*held
	for _, held := range member.held {
		if held.next > held.finished {
			member.counter++
			sent = append(sent, held)
			request.Commits = append(request.Commits, &pb.OffsetCommit{Topic: held.given.Topic, TopicId: held.given.TopicId,
				Partition: held.given.Partition, Epoch: held.given.Epoch, Counter: member.counter, Offset: held.next})
		}
	}
	if len(sent) == 0 {
		return nil
	}
	return member.client.retry(member.place(), func(ctx context.Context, broker pb.BrokerClient, options ...grpc.CallOption) (*pb.Error, error) {
		answer, err := broker.CommitOffsets(ctx, request, options...)
		if err != nil {
			return nil, err
		}
		for row, result := range answer.Results {
			if result.Error.GetCode() == "" {
				sent[row].finished = sent[row].next
			} else if exact(result.Error) != "STALE_ASSIGNMENT" {
				return result.Error, nil
			}
		}
		return nil, nil
	})
}
