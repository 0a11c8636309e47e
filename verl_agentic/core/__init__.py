"""Pure functions and frozen records; knows no verl, ray, torch, transformers, files, clock or global random state."""
