"""One file per arrow of the data flow; the only package that imports Ray.

The settings below are read when torch and tqdm are imported, in Ray's workers too, so they stand
where every job passes first. A value from outside wins.
"""

import os

from jobs.interruption import stop_quietly

# Waiting threads spin for some 50 us, then sleep. GNU OpenMP's default spins twenty times as long,
# and then two threads on a machine that has anything else to do run over ten times slower; sleeping
# at once (OMP_WAIT_POLICY=PASSIVE) takes twice the time on a quiet machine.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Progress is logged, line by line; third parties' bars would garble the log.
os.environ.setdefault("TQDM_DISABLE", "1")
# Ctrl-C while modules load, before a job has begun.
stop_quietly()
