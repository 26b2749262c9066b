package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsOfACodec = 300

// In each codec, by an idempotent producer; null keys and values, headers, long values.
func roundTrips(ctx context.Context, u user) error {
	if err := u.create(ctx, 1); err != nil {
		return err
	}
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(),
		kgo.GzipCompression(),
		kgo.SnappyCompression(),
		kgo.Lz4Compression(),
		kgo.ZstdCompression(),
	}
	var sent []*kgo.Record
	for number, codec := range codecs {
		client, err := u.client(kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(5*time.Millisecond))
		if err != nil {
			return err
		}
		records := records(u.topic, number*recordsOfACodec)
		err = client.ProduceSync(ctx, records...).FirstErr()
		client.Close()
		if err != nil {
			return fmt.Errorf("codec %d: %w", number, err)
		}
		sent = append(sent, records...)
	}
	found, err := u.read(ctx, len(sent))
	if err != nil {
		return err
	}
	if len(found) != len(sent) {
		return fmt.Errorf("%d records were sent and %d are there", len(sent), len(found))
	}
	for at, wanted := range sent {
		if err := compare(wanted, found[at]); err != nil {
			return fmt.Errorf("record %d: %w", at, err)
		}
	}
	return nil
}

func records(topic string, first int) []*kgo.Record {
	var made []*kgo.Record
	for number := first; number < first+recordsOfACodec; number++ {
		record := &kgo.Record{
			Topic:   topic,
			Key:     fmt.Appendf(nil, "key %d", number),
			Value:   fmt.Appendf(nil, "value %d", number),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}},
		}
		switch number % 10 {
		case 0:
			record.Key = nil
		case 1:
			record.Value = nil
		case 2:
			record.Headers = nil
		}
		if number%100 == 5 {
			record.Value = bytes.Repeat(record.Value, 50_000)
		}
		made = append(made, record)
	}
	return made
}

func compare(wanted, found *kgo.Record) error {
	same := same(wanted.Key, found.Key) && same(wanted.Value, found.Value) &&
		wanted.Offset == found.Offset && len(wanted.Headers) == len(found.Headers) &&
		wanted.Timestamp.UnixMilli() == found.Timestamp.UnixMilli()
	for at := 0; same && at < len(wanted.Headers); at++ {
		one, other := wanted.Headers[at], found.Headers[at]
		same = one.Key == other.Key && (one.Value == nil) == (other.Value == nil) && bytes.Equal(one.Value, other.Value)
	}
	if !same {
		return fmt.Errorf("sent with key %q at offset %d, found with key %q at offset %d",
			wanted.Key, wanted.Offset, found.Key, found.Offset)
	}
	return nil
}

func same(one, other []byte) bool {
	return (one == nil) == (other == nil) && bytes.Equal(one, other)
}
