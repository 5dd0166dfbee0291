"""``hopper train``, ``torchrun -m hopper.train`` and the scripts around them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HOPPER, REPOSITORY, Run, Runs
from safetensors.numpy import load_file
