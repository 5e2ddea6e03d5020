"""The verb `experiment`: the paper's experiments, and comparisons with other methods under attack.

`catalogue` lists the experiments, `aggregation` the ways to combine updates. `execution` carries
out one of the `runs`, with its clients (`players`) and servers (`service`).
"""
