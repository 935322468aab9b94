#!/bin/sh
# Launches a compiler and fails where ptxas serialised the warpgroup products (C7510..C7517) or spilled registers: it
# only mentions either, and each costs more than any tuning gains. FLASHBOB_ANY_PTXAS=1 lets both pass, as for mutants.
[ -z "${FLASHBOB_ANY_PTXAS:-}" ] || exec "$@"
report=$(mktemp)
"$@" 2>"$report"
status=$?
if [ "$status" -eq 0 ] && grep -E '\(C751[0-7]\)|[1-9][0-9]* bytes spill' "$report" >&2; then
  echo "check_ptxas: serialised products or spills" >&2
  status=1
fi
grep -vE '^ptxas info|^ *[0-9]+ bytes stack frame|^$' "$report" >&2
rm -f "$report"
exit $status
