"""Benchmarks of the protocols between two processes, over loopback or a shaped link.

Benchmarks time and do not verify; tests verify and do not time.

Each question has one module:

`by_clients`  what do whole rounds cost, by the number of clients?
`points`    what do single steps and whole medians cost, for any parameters?
`figures`   what do the paper's Figures 3 and 12 and its Table 1 look like here?
`scale`     what do workers change?
`forecast`  what will a round cost? The verb `plan`, which needs no servers

They share `cli` (the verb `bench`), `kind` (what every kind does), `settings` (options) and
`harness` (two processes). Beside these are `party` (one of the processes), `work` (a point of
either), `link` (a shaped link) and `yardstick` (AES).
"""
