package main

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// One stream, with several connections, each of which sends a pipeline of XADD and waits for its answers: the server reads 16 KiB of each
// connection at a time, and syncs once for what it has read of all. Read through one connection, by XREAD.
type redisStream struct {
	name    string
	options options
	clients []rueidis.Client
}

func openRedis(name string, options options) (stream, error) {
	found := &redisStream{name, options, nil}
	for range options.connections {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{options.address}, DisableCache: true, PipelineMultiplex: -1, AlwaysPipelining: true,
		})
		if err != nil {
			return nil, err
		}
		found.clients = append(found.clients, client)
	}
	return found, nil
}

func (r *redisStream) produce(values [][]byte, records int) error {
	done := make(chan error, len(r.clients))
	for number, client := range r.clients {
		from, to := records*number/len(r.clients), records*(number+1)/len(r.clients)
		go func() { done <- r.through(client, values, from, to) }()
	}
	for range r.clients {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

func (r *redisStream) through(client rueidis.Client, values [][]byte, from, to int) error {
	ctx := context.Background()
	for sent := from; sent < to; sent += r.options.batch {
		commands := make(rueidis.Commands, 0, r.options.batch)
		for at := sent; at < min(sent+r.options.batch, to); at++ {
			value := rueidis.BinaryString(values[at%len(values)])
			commands = append(commands, client.B().Xadd().Key(r.name).Id("*").FieldValue().FieldValue("v", value).Build())
		}
		for _, answer := range client.DoMulti(ctx, commands...) {
			if err := answer.Error(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *redisStream) consume(records int) (int, error) {
	after, seen, size := "0", 0, 0
	for seen < records {
		command := r.clients[0].B().Xread().Count(int64(r.options.batch)).Streams().Key(r.name).Id(after).Build()
		answer, err := r.clients[0].Do(context.Background(), command).AsXReadSlices()
		if err != nil {
			return 0, err
		}
		entries := answer[r.name]
		if len(entries) == 0 {
			return 0, fmt.Errorf("%s ends after %d records", r.name, seen)
		}
		for _, entry := range entries {
			size += len(entry.FieldValues[0].Value)
		}
		seen += len(entries)
		after = entries[len(entries)-1].ID
	}
	return size, nil
}

func (r *redisStream) remove() error {
	return r.clients[0].Do(context.Background(), r.clients[0].B().Del().Key(r.name).Build()).Error()
}

func (r *redisStream) close() {
	for _, client := range r.clients {
		client.Close()
	}
}
