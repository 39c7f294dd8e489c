"""A handler in Python: Posthaste posts each message, and keeps the marks.

    python3 billing.py 8080

Needs nothing but Python. Effects happen at least once: a request whose answer was lost comes again, with the same
Posthaste-Id. The events of an answer are appended once, with the mark of the message.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS = "application/vnd.posthaste.events+json"


class Billing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are used again

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            order = json.loads(body)
            invoice = {"order": order["id"], "total": order["total"]}
            is_negative = order["total"] < 0
        except (ValueError, KeyError, TypeError) as error:
            return self.answer(422, f"no order: {error!r}")  # a dead letter at once
        if is_negative:
            return self.answer(422, "a negative total")
        event = {"topic": "invoices.made", "key": str(order["id"]), "payload": invoice}
        self.answer(200, json.dumps({"events": [event]}), EVENTS)

    def answer(self, status, text, content_type="text/plain"):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Billing)
print(f"listening on {server.server_port}", flush=True)
server.serve_forever()
