#!/usr/bin/env bash
# systemd-analyze verify is silent about the units, and that of the metrics is
# exposed as little as it should be. It wants ExecStart's program
# to be there: copies of the units name the one that was built.
#
#   tests/system/systemd_verify.sh PENSTOCKD PENSTOCK
set -euo pipefail

penstockd=$(realpath "$1")
penstock=$(realpath "$2")
units=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../systemd" && pwd)
copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT

cp "$units"/penstockd.{service,socket} "$units"/penstock-{metrics,link,makers}.service \
  "$units"/penstock-fetch.{service,socket} "$copies"
grep -q '^ExecStart=/usr/bin/penstockd ' "$copies/penstockd.service"
sed -i "s|^\(Exec[A-Z][a-z]*\)=/usr/bin/penstockd |\1=$penstockd |" \
  "$copies/penstockd.service"
grep -q '^ExecStart=/usr/bin/penstock ' "$copies/penstock-metrics.service"
sed -i "s|^ExecStart=/usr/bin/penstock |ExecStart=$penstock |" \
  "$copies"/penstock-{metrics,link,makers}.service

# It exits with 0 after mere warnings, such as an unknown key: none is allowed.
output=$(systemd-analyze verify --man=no "$copies"/penstockd.{service,socket} \
  "$copies"/penstock-{metrics,link,makers}.service "$copies"/penstock-fetch.{service,socket} 2>&1) || { echo "$output"; exit 1; }
if [[ -n $output ]]; then
  echo "$output"
  exit 1
fi
# What serves metrics may do next to nothing: tenths, of 10 at most.
systemd-analyze security --offline=yes --threshold=15 --no-pager \
  "$copies/penstock-metrics.service" >/dev/null
systemd-analyze security --offline=yes --threshold=20 --no-pager \
  "$copies/penstock-fetch.service" >/dev/null
for link in link makers; do
  systemd-analyze security --offline=yes --threshold=20 --no-pager \
    "$copies/penstock-$link.service" >/dev/null
done
# Reads the file and says what it would do.
systemd-sysusers --dry-run --root="$copies" "$units/penstock.sysusers"
