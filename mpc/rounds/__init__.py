"""What a round computes: methods, ranges, parameters, the pipeline and what it costs."""
