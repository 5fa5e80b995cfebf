#!/bin/bash
# A stand-in for pveum, pvesh and guestward, by the name it is called with: the tests' own process does what it is asked (programs.py).
exec 3<>"/dev/tcp/127.0.0.1/$STANDIN_PORT"
printf '%s\0' $(($# + 5)) "$STANDIN" "$$" "${STANDIN_KILL:-}" "${STANDIN_FAIL:-}" "${0##*/}" "$@" >&3
read -r code <&3
while IFS= read -r line <&3; do
    if [[ $line == o* ]]; then echo "${line:1}"; else echo "${line:1}" >&2; fi
done
exit "$code"
