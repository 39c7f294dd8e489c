// Append with pgx. DB=postgres://… go run .
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errTotal = errors.New("an order needs a total")

func placeOrder(ctx context.Context, pool *pgxpool.Pool, total int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // use tx in here, never pool: that would be another connection
		var order int64
		if err := tx.QueryRow(ctx, "insert into orders (total) values ($1) returning id", total).Scan(&order); err != nil {
			return err
		}
		payload := map[string]any{"order": order}
		if _, err := tx.Exec(ctx, "select posthaste.append('orders.placed', $1::jsonb, key => $2::bigint)", payload, order); err != nil {
			return err
		}
		if total <= 0 {
			return errTotal // rolls back: neither the order nor its event
		}
		return nil
	})
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DB"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := placeOrder(ctx, pool, 990); err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(ctx, pool, 0); !errors.Is(err, errTotal) {
		log.Fatal(err)
	}
	fmt.Println("refused:", errTotal)
}
