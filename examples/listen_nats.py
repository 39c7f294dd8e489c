"""Makes a JetStream stream for a subject, unless it is there, and prints what arrives in it.

    pip install nats-py
    python3 examples/listen_nats.py 'orders.>' [nats://127.0.0.1:4222]
"""

import asyncio
import sys

import nats


async def main(subject, url="nats://127.0.0.1:4222"):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="EVENTS", subjects=[subject])
    print(f"listening on {subject}", flush=True)
    events = await jetstream.subscribe(subject, ordered_consumer=True)
    async for message in events.messages:
        text = message.data.decode(errors="replace")
        print(message.subject, message.headers["Message-ID"], text, flush=True)


try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    pass
