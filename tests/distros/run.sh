#!/bin/sh
# Each Debian that people run: `make demo` as first command, the package built there, and that package installed, used,
# upgraded and purged under its systemd. SUITES names them; a suite that cannot be had is skipped.
#
# Needs root, debootstrap and systemd-nspawn. target/distros/SUITE.tsv has the result, for docs/compatibility.md.
set -eu

repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$repository/target/distros
say() { echo "distros: $*"; }
fail() { say "FAILED: $*"; exit 1; }
. "$repository/tests/roots.sh"

[ "$(id -u)" = 0 ] || fail "needs root"
mkdir -p "$work"

# The columns of docs/compatibility.tsv.
result() { # VERDICT REASON
    say "$suite: $1${2:+: $2}"
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "Debian $suite" "$version" \
        "\`make demo\`, build, lintian, install, use, upgrade, purge" "$1" "$(date +%F)" "$2" >"$work/$suite.tsv"
}

failed=
for suite in ${SUITES:-bookworm trixie sid}; do
    log=$work/$suite.log
    version=-
    if ! (base "$suite") >"$log" 2>&1; then
        result skipped "no root can be made"
        continue
    fi
    version=$(tar -xOf "$repository/target/roots/$suite.tar" ./etc/debian_version)
    say "$suite: see $log"
    if SUITE=$suite PACKAGE_TO=$work/$suite "$repository/tests/fresh/run.sh" >>"$log" 2>&1 &&
        SUITE=$suite PACKAGES=$work/$suite "$repository/tests/deb/run.sh" >>"$log" 2>&1; then
        result works ""
    else
        failed="$failed $suite"
        # The log has paths of this machine; what failed is said without them.
        result FAILED "$(sed -n 's/.*FAILED: //p' "$log" | tail -n 1 | sed 's/:* see .*//' | tr '\t' ' ')"
    fi
done
[ -z "$failed" ] || fail "on$failed"
