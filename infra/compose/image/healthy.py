"""A container's health check: whether its process is ready.

Exit status 0 or 1; says why on stdout, where `docker inspect` shows it. With TLS on the admin port
it shows the process's own certificate, and does not check the answerer's: that is this container.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

TLS = os.environ.get("LEDGERMQ_ADMIN_TLS", "off") != "off"
URL = f"http{'s' if TLS else ''}://127.0.0.1:{os.environ.get('LEDGERMQ_ADMIN_PORT', '9651')}/readyz"


def context() -> ssl.SSLContext | None:
    if not TLS:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.load_cert_chain(os.environ["LEDGERMQ_TLS_CERT_FILE"], os.environ["LEDGERMQ_TLS_KEY_FILE"])
    return made


try:
    with urllib.request.urlopen(URL, timeout=4, context=context()) as answer:
        print(answer.read().decode().strip())
except urllib.error.HTTPError as refusal:
    print(refusal.read().decode().strip())
    sys.exit(1)
except OSError as error:
    print(f"{URL} does not answer: {error}")
    sys.exit(1)
