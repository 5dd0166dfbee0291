"""Calls a function as one rank: call_rank.py OUT.json MODULE:FUNCTION ARGUMENTS, with torchrun's
environment. The arguments are a list in JSON, and so is what the function returns written."""

import json
import pkgutil
import sys
from pathlib import Path

if __name__ == "__main__":
    out, name, arguments = sys.argv[1:]
    result = pkgutil.resolve_name(name)(*json.loads(arguments))
    Path(out).write_text(json.dumps(result))
