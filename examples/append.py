"""Appends an event in the same transaction as the data it tells of. The table is the one of docs/tutorial.md.

    pip install "psycopg[binary]"
    DB=postgres://postgres@127.0.0.1:5433/shop python3 examples/append.py
"""

import json
import os

import psycopg

with psycopg.connect(os.environ["DB"]) as db:  # leaving the block commits; an exception rolls back
    db.execute("create table if not exists orders (id bigserial primary key, customer text, total int not null)")
    (order,) = db.execute("insert into orders (customer, total) values (%s, %s) returning id", ["eve", 990]).fetchone()
    (event,) = db.execute(
        "select posthaste.append('orders.placed', %s::jsonb, key => %s)",
        [json.dumps({"order": order}), order],
    ).fetchone()

print(f"order {order}, event {event}")
