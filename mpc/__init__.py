"""Two-party computation of coordinate-wise medians and means on additive shares.

Read the modules in dependency order: `errors`, `canonical`, `options`, `kernels`, `prg`, `ring`,
`share`, `protocol`, `encode`, `ranges.base`, `ranges.coordinate`, `ranges.mean`, `ranges.linf`,
`ranges.l1`, `ranges.constant`, `ranges.registry`, `wire`, `channel`, `ot.base`, `ot.softspoken`,
`ot.ferret`, `ot.one_of_two`, `ot.one_of_n`, `preprocessing`, `party`, `boolean`, `millionaire`,
`compare`, `equal`, `methods.base`, `methods.reveal`, `methods.bucketed`, `methods.order`,
`methods.pairwise`, `methods.trimmed_mean`, `methods.radix`, `methods.mean`, `methods.registry`,
`params`, `pipeline`, `plan`. Nothing here opens a socket, reads a configuration or knows of servers
and clients.
"""
