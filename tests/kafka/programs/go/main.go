// Writes values 0 to COUNT-1 with idempotence, or reads them in a group: SEEDS TOPIC write|read COUNT. With "transact" it
// writes each in a transaction of its own, of which it aborts every third.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	count, _ := strconv.Atoi(os.Args[4])
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.DefaultProduceTopic(os.Args[2])}
	if os.Args[3] == "read" {
		options = append(options, kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[2]+"-go"),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	if os.Args[3] == "transact" {
		options = append(options, kgo.TransactionalID(os.Args[2]+"-go"))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for done := 0; done < count; {
		if os.Args[3] == "transact" {
			transact(ctx, client, done)
			done++
			continue
		}
		if os.Args[3] == "write" {
			record := kgo.KeySliceRecord([]byte(strconv.Itoa(done%5)), []byte(strconv.Itoa(done)))
			if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
				panic(err)
			}
			fmt.Println(done)
			done++
			continue
		}
		fetches := client.PollFetches(ctx)
		if fetches.IsClientClosed() || ctx.Err() != nil {
			panic("not all came in time")
		}
		fetches.EachRecord(func(record *kgo.Record) { fmt.Println(string(record.Value)); done++ })
	}
}

func transact(ctx context.Context, client *kgo.Client, number int) {
	if err := client.BeginTransaction(); err != nil {
		panic(err)
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord(strconv.Itoa(number))).FirstErr(); err != nil {
		panic(err)
	}
	commit := kgo.TransactionEndTry(number%3 != 1)
	if err := client.EndTransaction(ctx, commit); err != nil {
		panic(err)
	}
	if commit == kgo.TryCommit {
		fmt.Println(number)
	}
}
