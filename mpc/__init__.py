"""Two-party computation of coordinate-wise medians and means on shares.

Read the modules in dependency order: `errors`, `canonical`, `options`, `arrays`, `kernels`, `prg`,
`ring`, `aggregators`, `share`, `protocol`, `encode`, `ranges.base`, `ranges.log`, `ranges.follow`,
`ranges.coordinate`, `ranges.mean`, `ranges.linf`, `ranges.l1`, `ranges.constant`,
`ranges.registry`, `optimiser`, `wire`, `channel`, `ot.base`, `ot.extension`, `ot.scratch`,
`ot.hash`, `ot.leaves`, `ot.softspoken`, `ot.ferret`, `ot.one_of_two`,
`correlations.base`, `correlations.tables`, `correlations.triples`, `correlations.plane_ots`,
`correlations.random_ots`, `correlations.dabits`, `correlations.pool`, `party`, `boolean`,
`millionaire`, `compare`, `equal`, `square`, `convert`, `dealing`, `clusters`, `methods.reveal`,
`methods.bounds`, `methods.base`, `methods.groups`, `methods.bucketed`, `methods.order`,
`methods.pairwise`, `methods.trimmed_mean`, `methods.mean`, `methods.radix`, `methods.descent`,
`methods.clustered`, `methods.reclustered`, `methods.zeno`, `methods.registry`, `exchange`,
`params`, `training`, `pipeline`, `plan`.

Nothing here opens a socket, reads a configuration or knows of servers and clients.
"""
