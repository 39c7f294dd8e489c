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
    if not hasattr(connections, "one") or connections.one.closed:
        connections.one = psycopg.connect(os.environ["DATABASE_URL"])
    return connections.one


class Billing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            order = json.loads(body)
            invoice = (order["id"], order["total"])
        except (ValueError, KeyError, TypeError) as error:
            return self.answer(422, f"no order: {error!r}")  # a dead letter at once
        try:
            self.handle_once(self.headers, invoice)
        except Exception as error:
            return self.answer(500, repr(error))  # tried again; 503 would wait, without an attempt
        self.answer(204)

    def handle_once(self, message, invoice):
        with database().transaction(), database().cursor() as cursor:
            cursor.execute(
                "select posthaste.admit(%s, %s, %s, %s::int, %s::bigint)",
                (message["Posthaste-Consumer"], message["Posthaste-Id"], message["Posthaste-Topic"],
                 message["Posthaste-Partition"], message["Posthaste-Position"]),
            )
            if cursor.fetchone()[0]:  # first: nobody has done it
                cursor.execute("insert into billing.invoices values (%s, %s)", invoice)

    def answer(self, status, text=""):
        body = text.encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Billing)
print(f"listening on {server.server_port}", flush=True)
server.serve_forever()
