"""One file per arrow of the data flow; the only package that imports Ray."""

import os

# Progress is logged, line by line; third parties' bars would garble the log. Read when they are
# imported, so it must stand before anything else, in workers too.
os.environ.setdefault("TQDM_DISABLE", "1")
