#!/bin/sh
# The package of `make deb`, installed, upgraded, removed and purged on a Debian whose systemd has booted, with the
# commands of docs/install.md and of the guides that name tests/deb/steps.sh between; then, under a kernel that has
# AppArmor, its profile enforced. SUITE names the Debian; without it, it is 12 (bookworm). PACKAGES names another folder of
# it than target/deb.
#
# Needs root, debootstrap and systemd-nspawn. The container has a network of its own that leads nowhere.
set -eu

repository=$(cd "$(dirname "$0")/../.." && pwd)
here=$repository/tests/deb
suite=${SUITE:-bookworm}
work=$repository/target/deb-test/$suite
root=$work/root

say() { echo "deb-test: $*"; }
fail() { say "FAILED: $*"; exit 1; }
. "$repository/tests/roots.sh"

[ "$(id -u)" = 0 ] || fail "needs root"
command -v debootstrap systemd-nspawn >/dev/null ||
    fail "needs debootstrap and systemd-nspawn: apt-get install -y debootstrap systemd-container"
packages=${PACKAGES:-$repository/target/deb}
package=$(ls "$packages"/weir_*.deb 2>/dev/null) && lab=$(ls "$packages"/weir-lab_*.deb 2>/dev/null) ||
    fail "no packages: make deb"

# Mounts are this script's own, and end with it.
if [ "${1:-}" != --unshared ]; then
    exec unshare --mount --propagation private "$0" --unshared
fi
mkdir -p "$work"

# In a process of its own, which becomes systemd-nspawn. systemd 258 and newer boot with the unified hierarchy only.
contained() {
    newest=$(ls "$root"/usr/lib/*/systemd/libsystemd-shared-*.so | sed 's/.*shared-//; s/[^0-9].*//' | sort -n | tail -n 1)
    [ "${newest:-0}" -lt 258 ] || export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
    exec systemd-nspawn --quiet --register=no --keep-unit --directory "$root" "$@"
}

# The machine as Debian makes it, kept from one run to the next while what it is made with is the same.
made_with=$(cat "$here/root.sh" "$here/guest.sh" | cksum)
if [ "$(cat "$work/made-with" 2>/dev/null)" != "$made_with" ]; then
    say "making a machine with libvirt (three minutes)"
    unpack "$suite" "$root"
    [ "$suite" != bookworm ] || echo "deb $(mirror) bookworm-backports main" >>"$root/etc/apt/sources.list"
    cp "$here/root.sh" "$here/guest.sh" "$root/root/"
    (contained --pipe sh /root/root.sh </dev/null >>"$work/root.log" 2>&1) || fail "root.sh: see $work/root.log"
    echo "$made_with" >"$work/made-with"
fi

# The same package as a later version.
later=$work/later
rm -rf "$later"
mkdir -p "$later"
dpkg-deb --raw-extract "$package" "$later/tree"
sed -i 's/^Version: .*/&+later/' "$later/tree/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$later/tree" "$later" >/dev/null
rm -r "$later/tree"

# What the machine sees of the test; it is gone with the machine.
given=$work/given
rm -rf "$given"
mkdir -p "$given/later"
cp "$package" "$lab" "$here/steps.sh" "$here/apparmor.sh" "$here/console.py" "$given/"
cd "$repository"
grep -rlZ --include='*.md' '^<!-- tests/deb/steps.sh runs these lines' README.md docs | xargs -0 cp -t "$given"
cd "$work"
cp "$later"/weir_*.deb "$given/later/"

say "booting a container"
contained --boot --volatile=overlay --private-network --capability=CAP_BPF --bind-ro="$given:/given" --console=pipe \
    </dev/null >"$work/boot.log" 2>&1 &
nspawn=$!
leader() { tr -d ' ' <"/proc/$nspawn/task/$nspawn/children"; }
booted() { [ -e "/proc/$(leader)/root/run/systemd/private" ]; }
for _ in $(seq 200); do
    ! booted || break
    sleep 0.3
done
booted || fail "the container does not boot: see $work/boot.log"
inside() {
    nsenter --target "$(leader)" --mount --uts --ipc --net --pid --root --wd \
        env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@"
}
status=0
inside sh /given/steps.sh || status=$?
[ $status = 0 ] || inside journalctl --no-pager -q -n 60 || true
# SIGTERM has systemd halt the container.
kill "$nspawn"
wait "$nspawn" || true
[ $status = 0 ] || fail "in the container"

say "booting a machine with AppArmor (five minutes)"
"$here/vm.sh" "$work" || fail "with AppArmor: see $work/vm.log"
say "passed"
