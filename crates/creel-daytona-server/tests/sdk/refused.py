"""Creates a sandbox with an SDK that refuses the answer, and prints why it does.

Usage: refused.py ADMIN_URL, with DAYTONA_API_URL and DAYTONA_API_KEY set.
"""

import faulthandler
import json
import os

from daytona import Daytona

faulthandler.dump_traceback_later(120, exit=True)
try:
    Daytona().create()
    message = ""
except Exception as error:
    message = str(error)
print(json.dumps({"message": message}), flush=True)
# A connection that stays open keeps the interpreter from ending.
os._exit(0)
