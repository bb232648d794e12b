"""What a run will take before anyone rents a machine: memory, GPU-hours, days, money.

Plain arithmetic over numbers; nothing here knows Ray, torch or a dataset.
"""
