"""The paper's experiments, and comparisons with other methods under attack: the verb `experiment`.

Read the modules in dependency order: `aggregators`, `methods`, `runs`, `saved`, `players`, `service`, `runner`,
`catalogue`, `summaries`, `progress`, `cli`.
"""
