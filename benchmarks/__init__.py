"""Measure what the protocols cost between two processes, over loopback or a shaped link.

Benchmarks time and do not verify; tests verify and do not time.

One file a question:

`points`    what single steps and whole medians cost, for any parameters (bench ot, compare, median)
`fig3`      how does the cost grow with the clients? The paper's Figure 3
`fig12`     how much of a server's time is the secure computation? The paper's Figure 12
`table1`    what does a round of a real model cost, phase by phase? The paper's Table 1
`links`     which OT extension for which link?
`parts`     where does the time of an OT and of a comparison go?
`plan`      what will a round cost? Told beforehand, without servers
`peers`     what do other systems take for the same work?

What they share: `cli` (the verb), `settings` (options, progress), `harness` (two processes), `party`
(one of them), `work` (what it does for a point), `link` (shaped), `reported` (others' figures), and
from the laboratory `report` (tables, JSON) and `plots`.
"""
