"""A container's health check: whether its process is ready.

Exit status 0 or 1; says why on stdout, where `docker inspect` shows it.
"""

import os
import sys
import urllib.error
import urllib.request

URL = f"http://127.0.0.1:{os.environ.get('LEDGERMQ_ADMIN_PORT', '9651')}/readyz"

try:
    with urllib.request.urlopen(URL, timeout=4) as answer:
        print(answer.read().decode().strip())
except urllib.error.HTTPError as refusal:
    print(refusal.read().decode().strip())
    sys.exit(1)
except OSError as error:
    print(f"{URL} does not answer: {error}")
    sys.exit(1)
