#!/bin/sh
# The package of `make deb`, installed, upgraded, removed and purged on a Debian whose systemd has booted, with the
# commands of docs/install.md and of the guides that name tests/deb/steps.sh between; then, under a kernel that has
# AppArmor, its profile enforced. SUITE names the Debian; without it, it is 12 (bookworm).
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

[ "$(id -u)" = 0 ] || fail "needs root"
command -v debootstrap systemd-nspawn >/dev/null ||
    fail "needs debootstrap and systemd-nspawn: apt-get install -y debootstrap systemd-container"
package=$(ls "$repository"/target/deb/weir_*.deb 2>/dev/null) || fail "no package: make deb"

# Mounts are this script's own, and end with it.
if [ "${1:-}" != --unshared ]; then
    exec unshare --mount --propagation private "$0" --unshared
fi
mkdir -p "$work"

# In a process of its own, which becomes systemd-nspawn.
contained() { exec systemd-nspawn --quiet --register=no --keep-unit --directory "$root" "$@"; }

# The machine as Debian makes it, kept from one run to the next while what it is made with is the same.
made_with=$(cat "$here/root.sh" "$here/guest.sh" | cksum)
if [ "$(cat "$work/made-with" 2>/dev/null)" != "$made_with" ]; then
    # One mirror has all suites; `bookworm-security` and the like are elsewhere.
    mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ { print $1; exit }')
    [ -n "$mirror" ] || fail "apt knows no source of Debian here: apt-get update"
    say "making a machine with libvirt (three minutes)"
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$work/root.log" 2>&1 ||
        fail "debootstrap: see $work/root.log"
    echo "deb $mirror $suite main" >"$root/etc/apt/sources.list"
    [ "$suite" != bookworm ] || echo "deb $mirror bookworm-backports main" >>"$root/etc/apt/sources.list"
    # The links that are there would lead to the host's.
    rm -rf "$root/etc/ssl/certs"
    cp -aL /etc/ssl/certs "$root/etc/ssl/certs"
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
dpkg-deb --root-owner-group --build "$later/tree" "$later" >/dev/null
rm -r "$later/tree"

# What the machine sees of the test; it is gone with the machine.
given=$work/given
rm -rf "$given"
mkdir -p "$given/later"
cp "$package" "$here/steps.sh" "$here/apparmor.sh" "$here/console.py" "$given/"
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
