// What users of franz-go do, against a server: one command for each test of ../test_franz_go.py.
//
//	program BOOTSTRAP round-trips|group|administration|transactions|numbers TOPIC
//
// It ends with 0 if the server did what Kafka does, else it says what was wrong. TOPIC is a name that nothing else has;
// `numbers` goes on until its standard input ends, and prints how many records are acknowledged.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// No promise, only an end.
const patience = 120 * time.Second

var commands = map[string]func(context.Context, user) error{
	"round-trips":    roundTrips,
	"group":          group,
	"administration": administration,
	"transactions":   transactions,
	"numbers":        numbers,
}

func main() {
	if len(os.Args) != 4 || commands[os.Args[2]] == nil {
		fail(fmt.Errorf("BOOTSTRAP, a command and TOPIC are wanted"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := commands[os.Args[2]](ctx, user{bootstrap: os.Args[1], topic: os.Args[3]}); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A user has one topic.
type user struct{ bootstrap, topic string }

// With the options' defaults, which are those of the library: idempotent, acks of all.
func (u user) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(u.bootstrap)}, options...)...)
}

func (u user) create(ctx context.Context, partitions int32) error {
	client, err := u.client()
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, partitions, -1, nil, u.topic)
	return err
}

// The first `count` records from the beginning, in the order in which they come.
func (u user) read(ctx context.Context, count int) ([]*kgo.Record, error) {
	client, err := u.client(kgo.ConsumeTopics(u.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var found []*kgo.Record
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records were read: %w", len(found), count, err)
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}
