"""`apc packet trace ARGUMENTS` twice in this process; the last line lists the files that the second one entered."""

import json
import sys

from tests.support.house import Walk

from apc_cli.commands import main

for _ in range(2):
    with Walk() as walk:
        try:
            main(["packet", "trace", *sys.argv[1:]])
        except SystemExit as ended:
            assert ended.code in (0, None), ended.code
print(json.dumps(sorted(walk.files)))
