"""The click-through-rate check: data, models, metrics and the paired comparison."""
