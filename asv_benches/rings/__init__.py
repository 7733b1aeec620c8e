"""Times attention over ranks: what each computes, sends and waits for, and a model of many ranks."""
