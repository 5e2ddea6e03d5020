"""The computation of a round: methods, ranges, parameters, the pipeline and its cost."""
