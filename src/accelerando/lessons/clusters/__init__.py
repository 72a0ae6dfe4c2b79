"""Lesson 10: several machines, what starts a program on them, and what a slow network between them costs.

`stage` holds a virtual cluster over the cells of a notebook. On it, `launching` starts one training by every launcher,
`efficiency` asks what a link leaves of two nodes' work, `recovery` sets ways of sending less beside each other, and
`failures` kills a node in the middle of training. What runs on each rank stands in the modules that begin with ``on_``.
`commands` writes the lines for real clusters, `hangs` says what to look at first when they do not come back, and `task`
is the lab's timed question.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""
