package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsAtTimes = 10

var firstTime = time.UnixMilli(1_700_000_000_000)

// An administrator has one topic, and a group of the same name.
type administrator struct {
	user
	client    *kgo.Client
	admin     *kadm.Client
	partition int32 // of its records
}

// Topics, configurations, offsets, records and groups, as `kadm` has them.
func administration(ctx context.Context, u user) error {
	client, err := u.client()
	if err != nil {
		return err
	}
	defer client.Close()
	a := &administrator{user: u, client: client, admin: kadm.NewClient(client)}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"brokers", a.brokers},
		{"topics", a.topics},
		{"configurations", a.configurations},
		{"partitions", a.partitions},
		{"offsets", a.offsets},
		{"records", a.records},
		{"groups", a.groups},
		{"deletion", a.deletion},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (a *administrator) brokers(ctx context.Context) error {
	metadata, err := a.admin.BrokerMetadata(ctx)
	if err != nil || len(metadata.Brokers) != 1 || metadata.Controller != metadata.Brokers[0].NodeID {
		return fmt.Errorf("%w %+v", err, metadata)
	}
	configs, err := a.admin.DescribeBrokerConfigs(ctx, metadata.Controller)
	if err != nil || len(configs) != 1 || configs[0].Err != nil {
		return fmt.Errorf("configurations: %w %+v", err, configs)
	}
	return nil
}

func (a *administrator) topics(ctx context.Context) error {
	kept := "60000000"
	created, err := a.admin.CreateTopics(ctx, 2, 1, map[string]*string{"retention.ms": &kept}, a.topic)
	if err = errors.Join(err, created[a.topic].Err); err != nil {
		return err
	}
	again, err := a.admin.CreateTopics(ctx, 2, 1, nil, a.topic)
	if err != nil || !errors.Is(again[a.topic].Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("created twice: %w %w", err, again[a.topic].Err)
	}
	copied := a.topic + "-copied"
	refused, err := a.admin.CreateTopics(ctx, 1, 3, nil, copied)
	if err != nil || !errors.Is(refused[copied].Err, kerr.InvalidReplicationFactor) {
		return fmt.Errorf("with three replicas: %w %w", err, refused[copied].Err)
	}
	listed, err := a.admin.ListTopics(ctx)
	if err != nil || len(listed[a.topic].Partitions) != 2 || listed.Has(copied) {
		return fmt.Errorf("listed: %w %+v", err, listed)
	}
	return nil
}

// One value set, then all of them replaced, which unsets it.
func (a *administrator) configurations(ctx context.Context) error {
	kept, longest := "70000000", "2000000"
	altered, err := a.admin.AlterTopicConfigs(
		ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &kept}}, a.topic)
	if err != nil || len(altered) != 1 || altered[0].Err != nil {
		return fmt.Errorf("one: %w %+v", err, altered)
	}
	if err := a.set(ctx, map[string]string{"retention.ms": kept}); err != nil {
		return err
	}
	altered, err = a.admin.AlterTopicConfigsState(
		ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &longest}}, a.topic)
	if err != nil || len(altered) != 1 || altered[0].Err != nil {
		return fmt.Errorf("all: %w %+v", err, altered)
	}
	return a.set(ctx, map[string]string{"max.message.bytes": longest})
}

// Whether exactly these are set of the topic, and all others told.
func (a *administrator) set(ctx context.Context, wanted map[string]string) error {
	described, err := a.admin.DescribeTopicConfigs(ctx, a.topic)
	if err != nil {
		return err
	}
	found, err := described.On(a.topic, nil)
	if err = errors.Join(err, found.Err); err != nil {
		return err
	}
	count := 0
	for _, each := range found.Configs {
		if each.Source.String() != "DYNAMIC_TOPIC_CONFIG" {
			continue
		}
		count++
		if wanted[each.Key] != *each.Value {
			return fmt.Errorf("%s is set to %s", each.Key, *each.Value)
		}
	}
	if count != len(wanted) || len(found.Configs) < 10 {
		return fmt.Errorf("%d of %d told are set, not %+v", count, len(found.Configs), wanted)
	}
	return nil
}

func (a *administrator) partitions(ctx context.Context) error {
	grown, err := a.admin.UpdatePartitions(ctx, 3, a.topic)
	if err = errors.Join(err, grown[a.topic].Err); err != nil {
		return err
	}
	listed, err := a.admin.ListTopics(ctx, a.topic)
	if err != nil || len(listed[a.topic].Partitions) != 3 {
		return fmt.Errorf("listed: %w %+v", err, listed[a.topic])
	}
	return nil
}

// Of records in one partition, a second from one to the next.
func (a *administrator) offsets(ctx context.Context) error {
	for second := range recordsAtTimes {
		record := kgo.KeySliceRecord([]byte("k"), []byte("v"))
		record.Topic, record.Timestamp = a.topic, firstTime.Add(time.Duration(second)*time.Second)
		if err := a.client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		a.partition = record.Partition
	}
	for _, asked := range []struct {
		name   string
		list   func() (kadm.ListedOffsets, error)
		wanted int64
	}{
		{"start", func() (kadm.ListedOffsets, error) { return a.admin.ListStartOffsets(ctx, a.topic) }, 0},
		{"end", func() (kadm.ListedOffsets, error) { return a.admin.ListEndOffsets(ctx, a.topic) }, recordsAtTimes},
		{"time", func() (kadm.ListedOffsets, error) {
			return a.admin.ListOffsetsAfterMilli(ctx, firstTime.UnixMilli()+3_500, a.topic)
		}, 4},
		{"highest time", func() (kadm.ListedOffsets, error) {
			return a.admin.ListMaxTimestampOffsets(ctx, a.topic)
		}, recordsAtTimes - 1},
	} {
		listed, err := asked.list()
		if err = errors.Join(err, listed.Error()); err != nil {
			return fmt.Errorf("%s: %w", asked.name, err)
		}
		if found, _ := listed.Lookup(a.topic, a.partition); found.Offset != asked.wanted {
			return fmt.Errorf("%s is %d, not %d", asked.name, found.Offset, asked.wanted)
		}
	}
	return nil
}

func (a *administrator) records(ctx context.Context) error {
	var until kadm.Offsets
	until.Add(kadm.Offset{Topic: a.topic, Partition: a.partition, At: 2})
	deleted, err := a.admin.DeleteRecords(ctx, until)
	if err = errors.Join(err, deleted.Error()); err != nil {
		return err
	}
	starts, err := a.admin.ListStartOffsets(ctx, a.topic)
	if found, _ := starts.Lookup(a.topic, a.partition); err != nil || found.Offset != 2 {
		return fmt.Errorf("%w records begin at %d", err, found.Offset)
	}
	return nil
}

func (a *administrator) groups(ctx context.Context) error {
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: a.topic, Partition: a.partition, At: 4, LeaderEpoch: -1, Metadata: "note"})
	committed, err := a.admin.CommitOffsets(ctx, a.topic, offsets)
	if err = errors.Join(err, committed.Error()); err != nil {
		return err
	}
	fetched, err := a.admin.FetchOffsets(ctx, a.topic)
	if found, _ := fetched.Lookup(a.topic, a.partition); err != nil || found.At != 4 || found.Metadata != "note" {
		return fmt.Errorf("fetched: %w %+v", err, found)
	}
	lag, err := a.admin.Lag(ctx, a.topic)
	if err = errors.Join(err, lag.Error()); err != nil || lag[a.topic].State != "Empty" {
		return fmt.Errorf("lag: %w %+v", err, lag[a.topic])
	}
	if found, _ := lag[a.topic].Lag.Lookup(a.topic, a.partition); found.Lag != recordsAtTimes-4 {
		return fmt.Errorf("the lag is %d", found.Lag)
	}
	listed, err := a.admin.ListGroups(ctx)
	if _, there := listed[a.topic]; err != nil || !there {
		return fmt.Errorf("listed: %w %+v", err, listed)
	}
	removed, err := a.admin.DeleteOffsets(ctx, a.topic, offsets.TopicsSet())
	if err != nil || removed.Error() != nil {
		return fmt.Errorf("offsets deleted: %w %w", err, removed.Error())
	}
	fetched, err = a.admin.FetchOffsets(ctx, a.topic)
	if err != nil || len(fetched) != 0 {
		return fmt.Errorf("offsets are left: %w %+v", err, fetched)
	}
	return nil
}

func (a *administrator) deletion(ctx context.Context) error {
	deleted, err := a.admin.DeleteTopics(ctx, a.topic, a.topic+"-unknown")
	if err = errors.Join(err, deleted[a.topic].Err); err != nil {
		return err
	}
	if found := deleted[a.topic+"-unknown"].Err; !errors.Is(found, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("an unknown topic: %w", found)
	}
	// A client remembers for a while what it was told of topics.
	other, err := a.user.client()
	if err != nil {
		return err
	}
	defer other.Close()
	listed, err := kadm.NewClient(other).ListTopics(ctx)
	if err != nil || listed.Has(a.topic) {
		return fmt.Errorf("it is there still: %w", err)
	}
	return nil
}
