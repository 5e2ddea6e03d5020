"""The soak: a small service under faults, for as long as one likes, with every result audited.

Both servers and the clients of two cohorts are processes of their own, with a proxy before each
of them. Rounds of either cohort follow one another while faults strike: processes are killed,
links cut, stalled and delayed, disks full, clients slow. Nobody helps; a process that has ended is
started again, as systemd would.

`cli`         the verb `soak`, its table and its JSON
`run`         both cohorts at once, until the time is over
`rounds`      the rounds of one cohort, one after another
`faults`      which fault strikes when, from a seed, and how
`audit`       what is expected of the service, and what was found
`service`     the processes with their proxies and disks
`client`      what each client's process runs
`processes`   a process that is started again when it has ended
`proxy`       a TCP connection that can be cut, stalled, delayed
`disk`        a state folder that can be full
"""
