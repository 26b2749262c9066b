package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	groupPartitions = 4
	groupRecords    = 400
)

// Two members share the partitions (cooperative-sticky, the library's default) and commit; one leaves, and the other
// goes on where the commits are.
func group(ctx context.Context, u user) error {
	if err := u.create(ctx, groupPartitions); err != nil {
		return err
	}
	producer, err := u.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		return err
	}
	defer producer.Close()
	admin := kadm.NewClient(producer)
	one, err := u.member()
	if err != nil {
		return err
	}
	defer one.CloseAllowingRebalance()
	two, err := u.member()
	if err != nil {
		return err
	}
	defer two.CloseAllowingRebalance()

	if err := untilShared(ctx, admin, u.topic); err != nil {
		return err
	}
	seen := map[string]int{}
	if err := u.produceNumbers(ctx, producer, 0); err != nil {
		return err
	}
	if err := consumeAll(ctx, seen, groupRecords, one, two); err != nil {
		return err
	}

	two.CloseAllowingRebalance()
	if err := u.produceNumbers(ctx, producer, groupRecords); err != nil {
		return err
	}
	if err := consumeAll(ctx, seen, 2*groupRecords, one); err != nil {
		return err
	}
	one.CloseAllowingRebalance()
	lag, err := admin.Lag(ctx, u.topic)
	if err != nil {
		return err
	}
	if found := lag[u.topic].Lag.Total(); found != 0 || lag.Error() != nil {
		return fmt.Errorf("the group is %d records behind: %w", found, lag.Error())
	}
	for number, times := range seen {
		if times != 1 {
			return fmt.Errorf("record %s was read %d times", number, times)
		}
	}
	deleted, err := admin.DeleteGroups(ctx, u.topic)
	return errors.Join(err, deleted[u.topic].Err)
}

// Two members have as many partitions each.
func untilShared(ctx context.Context, admin *kadm.Client, group string) error {
	for {
		described, err := admin.DescribeGroups(ctx, group)
		if err != nil {
			return err
		}
		found := described[group]
		shared := len(found.Members) == 2 && found.State == "Stable"
		for _, member := range found.Members {
			parts := 0
			if assigned, ok := member.Assigned.AsConsumer(); ok {
				for _, topic := range assigned.Topics {
					parts += len(topic.Partitions)
				}
			}
			shared = shared && parts == groupPartitions/2
		}
		if shared {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the group is not shared by two members: %+v", found)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Of the group that is called as the topic.
func (u user) member() (*kgo.Client, error) {
	return u.client(
		kgo.ConsumerGroup(u.topic),
		kgo.ConsumeTopics(u.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		// By which a member hears of another one, and until it fetches what it was given.
		kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
}

func (u user) produceNumbers(ctx context.Context, producer *kgo.Client, first int) error {
	var made []*kgo.Record
	for number := first; number < first+groupRecords; number++ {
		made = append(made, &kgo.Record{Topic: u.topic, Value: fmt.Appendf(nil, "%d", number)})
	}
	return producer.ProduceSync(ctx, made...).FirstErr()
}

// Until so many different records were seen, and committed. No partition changes hands between a poll and its commit.
func consumeAll(ctx context.Context, seen map[string]int, count int, members ...*kgo.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, errs := make(chan []*kgo.Record), make(chan error, len(members))
	for _, member := range members {
		go func() {
			errs <- consume(ctx, member, batches)
			cancel()
		}()
	}
	var problems []error
	for ended := 0; ended < len(members); {
		select {
		case batch := <-batches:
			for _, record := range batch {
				seen[string(record.Value)]++
			}
			if len(seen) >= count {
				cancel()
			}
		case err := <-errs:
			ended++
			problems = append(problems, err)
		}
	}
	if len(seen) < count {
		problems = append(problems, fmt.Errorf("%d of %d records were read", len(seen), count))
	}
	return errors.Join(problems...)
}

// Until the context ends.
func consume(ctx context.Context, member *kgo.Client, batches chan<- []*kgo.Record) error {
	for {
		fetches := member.PollFetches(ctx)
		if ctx.Err() != nil {
			member.AllowRebalance()
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		batch := fetches.Records()
		if err := member.CommitRecords(context.WithoutCancel(ctx), batch...); err != nil {
			return err
		}
		member.AllowRebalance()
		batches <- batch
	}
}
