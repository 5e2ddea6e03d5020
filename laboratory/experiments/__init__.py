"""The verb `experiment`: the paper's experiments, and comparisons with other methods under attack.

Read the modules in dependency order: `aggregators`, `spectral`, `aggregation`, `runs`, `saved`,
`membership`, `players`, `collaborators`, `service`, `execution`, `catalogue`, `summaries`,
`progress`, `cli`.
"""
