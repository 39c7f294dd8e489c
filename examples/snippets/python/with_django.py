"""Append with Django. DB=postgres://… python3 with_django.py"""

import json
import os

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

server = conninfo_to_dict(os.environ["DB"])
settings.configure(  # your project's settings.py does this
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": server["dbname"],
            "USER": server["user"],
            "PASSWORD": server.get("password", ""),
            "HOST": server["host"],
            "PORT": server["port"],
        }
    },
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402


class Order(models.Model):
    total = models.IntegerField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


@transaction.atomic
def place_order(total):
    order = Order.objects.create(total=total)
    with connection.cursor() as cursor:  # the connection of the atomic block; with `using=`, take connections[using]
        cursor.execute(
            "select posthaste.append('orders.placed', %s::jsonb, key => %s)",
            [json.dumps({"order": order.pk}), order.pk],
        )
    if total <= 0:
        raise ValueError("an order needs a total")  # rolls back: neither the order nor its event


place_order(990)
try:
    place_order(0)
except ValueError as refused:
    print(f"refused: {refused}")
