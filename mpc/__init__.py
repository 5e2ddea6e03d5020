"""Two-party computation of coordinate-wise medians on additive shares.

Read the modules in dependency order: `errors`, `canonical`, `kernels`, `prg`, `ring`, `share`, `params`, `encode`, `wire`,
`channel`, `ot.base`, `ot.softspoken`, `ot.ferret`, `ot.one_of_two`, `ot.one_of_n`, `preprocessing`, `party`, `boolean`,
`millionaire`, `compare`, `equal`, `median.reveal`, `median.bucketed`, `median.order`, `median.pairwise`,
`median.trimmed`, `median.radix`, `median.methods`, `pipeline`, `plan`. Nothing here opens a socket, reads a
configuration or knows of servers and clients.
"""
