"""Floor 4: layers, which are frozen dataclasses of arrays that can be called."""
