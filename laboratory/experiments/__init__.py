"""The verb `experiment`: the paper's experiments, and comparisons with other methods under attack.

Read the modules in dependency order: `aggregators`, `aggregation`, `runs`, `saved`, `players`,
`service`, `execution`, `catalogue`, `summaries`, `progress`, `cli`.
"""
