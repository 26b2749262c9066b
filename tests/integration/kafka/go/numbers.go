package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	numberPartitions = 3
	underWayMax      = 500
	toldEvery        = 100
)

// Numbered records, until standard input ends. `acknowledged N` is printed at every hundredth. Behind the end each one
// is acknowledged, is there once, and those of a partition are in order.
func numbers(ctx context.Context, u user) error {
	if err := u.create(ctx, numberPartitions); err != nil {
		return err
	}
	client, err := u.client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(underWayMax),
		kgo.ProducerBatchMaxBytes(1_000),
		kgo.RecordRetries(1_000),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	stopped := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stopped)
	}()
	told := &acknowledgements{offsets: map[int]int64{}}
	sent := 0
	for ; !ended(stopped) && ctx.Err() == nil; sent++ {
		record := &kgo.Record{
			Topic: u.topic, Partition: int32(sent % numberPartitions), Value: strconv.AppendInt(nil, int64(sent), 10),
		}
		client.Produce(ctx, record, told.add(sent))
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if told.err != nil || len(told.offsets) != sent {
		return fmt.Errorf("%d of %d records are acknowledged: %w", len(told.offsets), sent, told.err)
	}
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, u.topic)
	if err != nil {
		return err
	}
	stored := int64(0)
	ends.Each(func(end kadm.ListedOffset) { stored += end.Offset })
	if err := ends.Error(); err != nil || stored != int64(sent) {
		return fmt.Errorf("%d records were sent and %d are stored: %w", sent, stored, err)
	}
	found, err := u.read(ctx, sent)
	if err != nil {
		return err
	}
	return told.compare(found)
}

func ended(stopped chan struct{}) bool {
	select {
	case <-stopped:
		return true
	default:
		return false
	}
}

// What was acknowledged: offsets by number.
type acknowledgements struct {
	mutex   sync.Mutex
	offsets map[int]int64
	err     error
}

func (a *acknowledgements) add(number int) func(*kgo.Record, error) {
	return func(record *kgo.Record, err error) {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		if err != nil {
			a.err = errors.Join(a.err, err)
			return
		}
		a.offsets[number] = record.Offset
		if len(a.offsets)%toldEvery == 0 {
			fmt.Println("acknowledged", len(a.offsets))
		}
	}
}

// Each record is where it was said to be, and those of a partition are in order.
func (a *acknowledgements) compare(found []*kgo.Record) error {
	next := [numberPartitions]int{}
	for partition := range numberPartitions {
		next[partition] = partition
	}
	for _, record := range found {
		wanted := next[record.Partition]
		next[record.Partition] += numberPartitions
		if number := string(record.Value); number != strconv.Itoa(wanted) || a.offsets[wanted] != record.Offset {
			return fmt.Errorf("record %s is at %d of partition %d, in the place of %d, acknowledged at %d",
				number, record.Offset, record.Partition, wanted, a.offsets[wanted])
		}
	}
	return nil
}
