"""Appends an event in the same transaction as the data it tells of.

    pip install "psycopg[binary]"
    DB=postgres://postgres@127.0.0.1/shop python3 examples/append.py
"""

import json
import os

import psycopg

with psycopg.connect(os.environ["DB"]) as db:  # leaving the block commits; an exception rolls back
    db.execute("create table if not exists orders (id bigserial primary key, total numeric)")
    (order,) = db.execute("insert into orders (total) values (%s) returning id", [9.90]).fetchone()
    (event,) = db.execute(
        "select posthaste.append('orders.placed', %s::jsonb, key => %s)",
        [json.dumps({"order": order}), str(order)],
    ).fetchone()

print(f"order {order}, event {event}")
