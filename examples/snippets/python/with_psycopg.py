"""Append with psycopg 3. DB=postgres://… python3 with_psycopg.py"""

import os

import psycopg
from psycopg.types.json import Jsonb


def place_order(db, total):
    with db.transaction():
        (order,) = db.execute("insert into orders (total) values (%s) returning id", [total]).fetchone()
        db.execute("select posthaste.append('orders.placed', %s, key => %s)", [Jsonb({"order": order}), order])
        if total <= 0:
            raise ValueError("an order needs a total")  # rolls back: neither the order nor its event


with psycopg.connect(os.environ["DB"], autocommit=True) as db:  # autocommit: transaction() is the only transaction
    place_order(db, 990)
    try:
        place_order(db, 0)
    except ValueError as refused:
        print(f"refused: {refused}")
