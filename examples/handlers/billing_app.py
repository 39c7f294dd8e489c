"""A handler in Python that keeps the marks itself: its effects happen once.

    pip install "psycopg[binary]"
    DATABASE_URL=postgres://localhost/shop python3 billing_app.py 8080

`posthaste.admit` and the effect are one transaction. It answers after the commit.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

connections = threading.local()


def database():
    if not hasattr(connections, "one"):
        connections.one = psycopg.connect(os.environ["DATABASE_URL"])
    return connections.one


class Billing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = self.headers
        order = json.loads(self.rfile.read(int(message["Content-Length"])))
        with database().transaction(), database().cursor() as cursor:
            cursor.execute(
                "select posthaste.admit(%s, %s, %s, %s::int, %s::bigint)",
                (message["Posthaste-Consumer"], message["Message-ID"], message["Posthaste-Topic"],
                 message["Posthaste-Partition"], message["Posthaste-Position"]),
            )
            if cursor.fetchone()[0]:  # first: nobody has done it
                cursor.execute("insert into billing.invoices values (%s, %s)", (order["id"], order["total"]))
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Billing)
print(f"listening on {server.server_port}", flush=True)
server.serve_forever()
