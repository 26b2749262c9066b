package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Far above what an answer takes, and far below the library's ten tries.
const atOnce = 20 * time.Second

// There are none, and their user is told so when the first one begins.
func transactions(ctx context.Context, u user) error {
	if err := u.create(ctx, 1); err != nil {
		return err
	}
	client, err := u.client(kgo.TransactionalID(u.topic))
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	err = client.BeginTransaction()
	if !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return fmt.Errorf("it was not refused: %w", err)
	}
	if took := time.Since(began); took > atOnce {
		return fmt.Errorf("it was refused behind %s", took)
	}
	err = client.ProduceSync(ctx, &kgo.Record{Topic: u.topic, Value: []byte("v")}).FirstErr()
	if err == nil {
		return errors.New("a record outside of any transaction was taken")
	}
	return nil
}
