"""Make the bucket that LEDGERMQ_ROOT names, if there is none yet; waits for a store that is just
starting.

Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Exit status 0: the bucket exists.
"""

import os
import sys
import time
from urllib.parse import parse_qs, urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

WAIT_S_MAX = 60
EXISTS = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def main() -> str:
    """What was done. Exits with one line that says what is wrong."""
    root = urlsplit(os.environ["LEDGERMQ_ROOT"])
    options = {name: values[-1] for name, values in parse_qs(root.query).items()}
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=options.get("endpoint"),
        region_name=options.get("region", "us-east-1"),
        config=Config(
            connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
        ),
    )
    until = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            client.create_bucket(Bucket=root.netloc)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in EXISTS:
                return f"bucket {root.netloc} exists"
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500 or time.monotonic() > until:
                sys.exit(f"bucket {root.netloc} cannot be made: {code}: {error.response['Error'].get('Message', '')}")
        except BotoCoreError as error:
            if time.monotonic() > until:
                sys.exit(f"bucket {root.netloc} cannot be made: {error}")
        else:
            return f"bucket {root.netloc} made"
        time.sleep(0.5)


if __name__ == "__main__":
    print(main())
