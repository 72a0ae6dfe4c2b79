"""Lesson 8: many processes on one machine, or many threads in one; where they sit, and through what they talk.

`layouts` races processes against threads, pins them well and badly, and draws the whole map; `sockets` reads which
cores belong together; `backends` sets gloo and oneCCL side by side; `launchers` looks at what a launcher sets without
being asked; `batches` asks what became of the accuracy; `task` is the lab's timed question. What runs on each rank
stands in ``on_layouts``, ``on_backends``, ``on_launchers`` and ``on_teams``.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""
