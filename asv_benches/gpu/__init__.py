"""One card, all that we say of it: judged, timed beside torch, and written down. ``make gpu-check`` runs it."""
