"""Lesson 8: many processes on one machine, or many threads in one; where they sit, and through what they talk.

`race` sets processes against threads and pins them well and badly, `sockets` reads which cores belong together,
`launchers` looks at what a launcher sets without being asked, `throughput` draws the whole map by the model of
`layouts`, `backends` sets gloo and oneCCL side by side, `global_batch` asks what became of the accuracy; `task` is the
lab's timed question, on a `teams.Team` of ranks that stay up. What runs on each rank stands in the modules ``on_…``.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""
