"""One file per arrow of the data flow; the only package that imports Ray.

The settings below are read when torch and tqdm are imported, in Ray's workers too, so they stand
where every job passes first. A value from outside wins.
"""

import os

# Waiting threads sleep. By default they spin, and then two threads on a machine that has anything
# else to do run over ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Progress is logged, line by line; third parties' bars would garble the log.
os.environ.setdefault("TQDM_DISABLE", "1")
