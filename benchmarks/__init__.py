"""Benchmarks of the protocols between two processes, over loopback or a shaped link.

Benchmarks time and do not verify; tests verify and do not time. `soak` alone verifies.

Each question has one module:

`points`    what do single steps and whole medians cost, for any parameters?
`fig3`      how does the cost grow with the clients? The paper's Figure 3
`fig12`     how much of a server's time is the secure computation? The paper's Figure 12
`table1`    what does a round of a real model cost, phase by phase? The paper's Table 1
`memory`    how much memory does a server take for a round of many clients?
`links`     which OT extension is best on which link?
`parts`     where does the time of an OT and of a comparison go?
`forecast`  what will a round cost? The verb `plan`, which needs no servers
`peers`     what do other systems take for the same work?
`soak`      does the service survive? The verb `soak`, which verifies every round

They share `cli` (the verb `bench`), `settings` (options and progress), `harness` (two processes),
`party` (one of them), `work` (what it does for a point), `link` (a shaped link), `reported`
(others' figures), and from the laboratory `report` (tables and JSON) and `plots`.
"""
