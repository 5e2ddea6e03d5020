"""Benchmarks of the protocols between two processes, over loopback or a shaped link.

Benchmarks time and do not verify; tests verify and do not time. `soak` alone verifies.

Each question has one module:

`by_clients`  what do whole rounds cost, by the number of clients?
`points`    what do single steps and whole medians cost, for any parameters?
`figures`   what do the paper's Figures 3 and 12 and its Table 1 look like here?
`peak`      how much memory does a server take for a round of many clients?
`scale`     what do workers change?
`flower`    how much longer does a private round of a Flower app take?
`parts`     where does the time of an OT and of a comparison go?
`forecast`  what will a round cost? The verb `plan`, which needs no servers
`soak`      does the service survive? The verb `soak`, which verifies every round

They share `cli` (the verb `bench`), `settings` (options and progress), `harness` (two processes),
`party` (one of them), `work` (what it does for a point), `running` (two real servers), `link` (a
shaped link), and from the laboratory `report` and `plots`.
"""
