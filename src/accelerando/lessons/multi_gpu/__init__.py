"""Lesson 9: which GPUs are close to each other, what NCCL makes of it, and how a large batch keeps its accuracy.

`wires` holds published speeds, `topologies` reads what ``nvidia-smi topo -m`` prints, `rings` predicts and measures a
ring whose hops differ, `logs` reads what NCCL says about itself, `placement` gives each rank its GPU, `overlap` hides
messages behind backward. Then the accuracy: `imitation` shows when many ranks equal one big batch, `rules` and `layers`
train with many ranks' batches, `norms` normalises over few images, `lab` is the task of the lab. What runs on ranks
stands in ``on_ranks``; ``dumps`` holds example texts.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""
