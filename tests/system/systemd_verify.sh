#!/usr/bin/env bash
# systemd-analyze verify is silent about the units. It wants ExecStart's program
# to be there: copies of the units name the one that was built.
#
#   tests/system/systemd_verify.sh PENSTOCKD
set -euo pipefail

penstockd=$(realpath "$1")
units=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../systemd" && pwd)
copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT

cp "$units"/penstockd.{service,socket} "$copies"
grep -q '^ExecStart=/usr/bin/penstockd ' "$copies/penstockd.service"
sed -i "s|^\(Exec[A-Z][a-z]*\)=/usr/bin/penstockd |\1=$penstockd |" \
  "$copies/penstockd.service"

# It exits with 0 after mere warnings, such as an unknown key: none is allowed.
output=$(systemd-analyze verify --man=no "$copies"/penstockd.{service,socket} \
  2>&1) || { echo "$output"; exit 1; }
if [[ -n $output ]]; then
  echo "$output"
  exit 1
fi
# Reads the file and says what it would do.
systemd-sysusers --dry-run --root="$copies" "$units/penstock.sysusers"
