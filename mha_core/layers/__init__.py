"""Floor 4: layers as frozen dataclasses of arrays. Call them."""
