"""Make the shared references of this folder importable (tests are collected without touching the
path)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
