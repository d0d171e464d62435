"""These tests look at a part of `benchmarks`, which is in the root of the repository and in no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
