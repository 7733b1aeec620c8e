"""Independent answers in NumPy float64, and bounds on how far a correct answer may be from them.

Nothing here imports the code under test.
"""

from .attention import attention as attention
