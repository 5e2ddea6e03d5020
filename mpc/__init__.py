"""Two-party computation of coordinate-wise medians on additive shares.

Read the modules in dependency order: `errors`, `arrays`, `kernels`, `prg`, `ring`, `share`,
`params`, `encode`, `wire`, `channel`, `ot.base`, `ot.extension`, `ot.scratch`, `ot.hash`,
`ot.softspoken`, `ot.ferret`, `ot.one_of_two`, `ot.one_of_n`, `correlations.base`,
`correlations.tables`, `correlations.triples`, `correlations.quads`, `correlations.random_ots`,
`correlations.dabits`, `correlations.pool`, `party`, `boolean`, `millionaire`, `compare`, `equal`,
`median.reveal`, `median.bucketed`, `median.order`, `median.pairwise`, `median.trimmed`,
`median.radix`, `median.methods`, `pipeline`, `plan`. Nothing here opens a socket, reads a
configuration or knows of servers and clients.
"""
