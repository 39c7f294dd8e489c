#!/usr/bin/env bash
# Hands in one order, and repeats until it is stored. Needs curl. GATEWAY and KEY are set by whoever runs it.
set -euo pipefail

order=${1:?usage: send.sh ORDER}
# The same for every try of this order: a repetition stores nothing twice.
once=$(cat /proc/sys/kernel/random/uuid)
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

for _ in $(seq 20); do
  status=$(curl --silent --show-error --output "$answer" --write-out '%{http_code}' --max-time 10 \
    --header "Authorization: Bearer $KEY" --header 'Content-Type: application/json' \
    --header "Idempotency-Key: $once" --header 'Event-Type: OrderPlaced' \
    --data "{\"order\": $order}" "$GATEWAY/v1/topics/orders.placed" || echo 000)
  case $status in
    202) cat "$answer"; echo; exit 0 ;;
    429 | 503 | 408 | 409 | 000) sleep 1 ;; # not now: once more
    *) cat "$answer" >&2; echo >&2; exit 1 ;; # never: mend the request
  esac
done
echo 'it was not taken in twenty tries' >&2
exit 1
