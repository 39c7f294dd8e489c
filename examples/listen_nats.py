"""Prints what arrives in JetStream on some subjects. Makes a stream for each of them, unless one is there.

    pip install nats-py
    python3 examples/listen_nats.py 'orders.>' ['invoices.>' ...] [nats://127.0.0.1:4222]

Each stream is named after its subject. The consumer is durable: started again, it goes on where it was.
"""

import asyncio
import re
import sys

try:
    import nats
    from nats.js.errors import NotFoundError
except ModuleNotFoundError as error:
    sys.exit(f"listen_nats: {error}; install it with `pip install nats-py`, in a virtual environment (docs/tutorial.md)")

SHORT = 1  # seconds: how long a fetch waits, and how long after one that failed


async def note(error):
    """Without it the client prints a traceback for each try to reach a server that is away."""
    if not isinstance(error, (OSError, nats.errors.UnexpectedEOF)):
        print(f"# {error!r}", flush=True)


async def away():
    print("# the server is away", flush=True)


async def back():
    print("# the server is back", flush=True)


async def stream_for(jetstream, subject):
    try:
        return await jetstream.find_stream_name_by_subject(subject)
    except NotFoundError:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", subject).strip("-") or "ALL"
        await jetstream.add_stream(name=name, subjects=[subject])
        return name


async def listen(jetstream, subject):
    stream = await stream_for(jetstream, subject)
    events = await jetstream.pull_subscribe(subject, durable=f"listener-of-{stream}", stream=stream)
    print(f"listening on {subject}, stream {stream}", flush=True)
    while True:
        try:
            for message in await events.fetch(100, timeout=SHORT):
                show(message)
                await message.ack()
        except asyncio.TimeoutError:
            pass  # nothing came
        except nats.errors.Error:
            await asyncio.sleep(SHORT)  # the server is away: the client connects again by itself


def show(message):
    id = (message.headers or {}).get("Message-ID", "-")
    print(plain(f"{message.subject} {id} {message.data.decode(errors='replace')}"), flush=True)


def plain(text):
    """What a sender wrote must not command the terminal: control characters are printed as their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


async def main(arguments):
    urls = [argument for argument in arguments if "://" in argument]
    subjects = [argument for argument in arguments if "://" not in argument] or ["orders.>"]
    client = await nats.connect(
        urls or "nats://127.0.0.1:4222",
        error_cb=note,
        disconnected_cb=away,
        reconnected_cb=back,
        max_reconnect_attempts=-1,  # for ever
    )
    await asyncio.gather(*(listen(client.jetstream(), subject) for subject in subjects))


try:
    asyncio.run(main(sys.argv[1:]))
except KeyboardInterrupt:
    pass
except (nats.errors.Error, OSError) as error:
    sys.exit(f"listen_nats: {error!r}")
