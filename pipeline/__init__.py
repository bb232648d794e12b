"""The core: settings, tables, prompts and the decoding engine. Knows no Ray, pool or feature."""
