"""What asv follows over time. The cases are those of the goals, from the package beside this one."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # asv finds this package alone, not its neighbour
