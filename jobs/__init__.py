"""One file per arrow of the data flow; the only package that imports Ray."""
