"""Lesson 7: what many ranks say to each other, what it costs, and what each of them has to hold.

`batches` asks what a larger batch is worth, `wires` counts and times collectives, `replicas` goes from hand-made data
parallelism to DDP, `shards` sets five ways of dealing out a model beside each other. What runs on each rank stands in
``on_wires``, ``on_replicas`` and ``on_shards``; `by_hand` is the code that the lesson shows.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""
