#!/usr/bin/env bash
# Azurite 3.37.0: a batch of deletes that an account's SAS signs is answered with HTTP 500, and deletes nothing.
#
# The same batch works with the account's key and with a container's SAS of the same permissions, and
# the account's SAS deletes the same blobs one by one. azure-storage-blob 12.31.1 sends the batches
# here; a client that knows no other delete than a batch, such as obstore 0.12.1, can delete
# nothing with such a signature.
#
# Output as seen:
#   Azurite 3.37.0, azure-storage-blob 12.31.1
#   account key: 202 202, left: none
#   container SAS: 202 202, left: none
#   account SAS: HTTP 500, left: a b
#   account SAS, one by one, left: none
#
# Fails if Azurite behaves otherwise. Needs Python 3.10 or later, Node.js with npm, and their registries.
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" azurite@3.37.0 >/dev/null
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check azure-storage-blob==12.31.1
port=$("$folder/venv/bin/python" -c '
import socket
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    print(one.getsockname()[1])')
"$folder/node_modules/.bin/azurite-blob" --blobHost 127.0.0.1 --blobPort "$port" --location "$folder/blobs" \
  --skipApiVersionCheck --silent >"$folder/log" &
server=$!
"$folder/venv/bin/python" - "$port" >"$folder/seen" <<'PYTHON'
import sys
import time
from datetime import datetime, timedelta, timezone

from azure.core.exceptions import HttpResponseError, ServiceRequestError
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    ResourceTypes,
    generate_account_sas,
    generate_container_sas,
)

ACCOUNT = "devstoreaccount1"  # Azurite's own, with the key that its documentation names
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
address = f"http://127.0.0.1:{sys.argv[1]}/{ACCOUNT}"
own = BlobServiceClient(address, credential=KEY, retry_total=0).get_container_client("runs")
deadline = time.monotonic() + 60
while True:
    try:
        own.create_container()
        break
    except ServiceRequestError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
rights = {"read": True, "write": True, "create": True, "delete": True, "list": True}
ends = datetime.now(timezone.utc) + timedelta(hours=1)
every = ResourceTypes(service=True, container=True, object=True)
signatures = {
    "account key": KEY,
    "container SAS": generate_container_sas(
        ACCOUNT, "runs", KEY, permission=ContainerSasPermissions(**rights), expiry=ends
    ),
    "account SAS": generate_account_sas(
        ACCOUNT, KEY, every, AccountSasPermissions(**rights), ends
    ),
}


def left() -> str:
    return " ".join(blob.name for blob in own.list_blobs()) or "none"


for name, credential in signatures.items():
    container = ContainerClient(address, "runs", credential=credential, retry_total=0)
    for blob in "ab":
        container.upload_blob(blob, b"x", overwrite=True)
    try:
        said = " ".join(str(one.status_code) for one in container.delete_blobs("a", "b"))
    except HttpResponseError as error:
        said = f"HTTP {error.status_code}"
    print(f"{name}: {said}, left: {left()}")
for blob in "ab":
    container.delete_blob(blob)
print(f"account SAS, one by one, left: {left()}")
PYTHON
sed -i '1i Azurite 3.37.0, azure-storage-blob 12.31.1' "$folder/seen"
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
Azurite 3.37.0, azure-storage-blob 12.31.1
account key: 202 202, left: none
container SAS: 202 202, left: none
account SAS: HTTP 500, left: a b
account SAS, one by one, left: none
SEEN
