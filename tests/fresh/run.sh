#!/bin/sh
# The newcomer's first commands on a new Debian: `make demo` and `make build` in a fresh root that has
# a Rust toolchain (the compiler and cargo, the C linker that rustc calls, and make) and nothing else.
# First as an ordinary user, who is told the one command to run, then as root, where all is set up.
# SUITE names the Debian; without it, it is 12 (bookworm). With PACKAGE_TO, the package is built there, too,
# and copied into that folder. `make demo-vm` is tried there as well; the file demo-vm says in one line what failed.
#
# Needs root and debootstrap. What is committed is tested. The mirror, proxies and
# certificates are the host's; crates that cargo has here already are not fetched again.
set -eu

repository=$(cd "$(dirname "$0")/../.." && pwd)
suite=${SUITE:-bookworm}
work=$repository/target/fresh/$suite
root=$work/root
toolchain=$(rustc --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}

say() { echo "fresh: $*"; }
fail() { say "FAILED: $*"; exit 1; }
. "$repository/tests/roots.sh"

[ "$(id -u)" = 0 ] || fail "needs root"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install -y debootstrap"

# Mounts are this script's own, and end with it.
if [ "${1:-}" != --unshared ]; then
    exec unshare --mount --propagation private "$0" --unshared
fi

mkdir -p "$work"
unpack "$suite" "$root"
# `ip netns exec` refuses a root that is no mount.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"

# A Rust toolchain, and what it implies.
mkdir -p "$root/opt/rust" "$root/opt/cargo/registry"
mount --bind -o ro "$toolchain" "$root/opt/rust"
for part in cache index; do
    [ ! -d "$cargo_home/registry/$part" ] || cp -a "$cargo_home/registry/$part" "$root/opt/cargo/registry/"
done
[ ! -e "$cargo_home/config.toml" ] || cp "$cargo_home/config.toml" "$root/opt/cargo/"

enter() {
    chroot "$root" /usr/bin/env CARGO_HOME=/opt/cargo PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
enter sh -c 'apt-get update -q && apt-get install -q -y --no-install-recommends gcc libc6-dev make' \
    >"$work/toolchain.log" 2>&1 || fail "gcc and make: see $work/toolchain.log"
# As on an image whose lists are cleared.
rm -rf "$root"/var/lib/apt/lists/*
enter useradd --create-home newcomer

git clone -q --no-hardlinks "$repository" "$root/home/newcomer/weir"
enter chown -R newcomer: /home/newcomer /opt/cargo
[ ! -e "$root/usr/include/pcap.h" ] || fail "libpcap is there: this is no fresh root"

say "an ordinary user's make demo"
log=$work/user.log
if enter setpriv --reuid newcomer --regid newcomer --clear-groups env HOME=/home/newcomer \
    make -C /home/newcomer/weir --no-print-directory demo >"$log" 2>&1; then
    fail "it went on without libpcap: see $log"
fi
grep -q 'apt-get update && apt-get install -y libpcap-dev' "$log" || fail "no word of what to run: see $log"

enter chown -R root: /home/newcomer/weir /opt/cargo
for target in demo build; do
    say "root's make $target"
    log=$work/$target.log
    enter env HOME=/root make -C /home/newcomer/weir --no-print-directory $target >"$log" 2>&1 ||
        { tail -n 20 "$log"; fail "make $target: see $log"; }
done
grep -q 'installing libpcap-dev' "$work/demo.log" || fail "it did not say what it installs: see $work/demo.log"
enter /home/newcomer/weir/target/release/weir --version

if [ -n "${PACKAGE_TO:-}" ]; then
    say "root's make deb"
    log=$work/deb.log
    # What `make deb` asks for.
    enter sh -c 'apt-get update -q && apt-get install -q -y --no-install-recommends debhelper dh-apparmor' \
        >"$work/debhelper.log" 2>&1 || fail "debhelper and dh-apparmor: see $work/debhelper.log"
    enter env HOME=/root make -C /home/newcomer/weir --no-print-directory deb >"$log" 2>&1 ||
        { tail -n 20 "$log"; fail "make deb: see $log"; }
    mkdir -p "$PACKAGE_TO"
    rm -f "$PACKAGE_TO"/weir*.deb
    cp "$root"/home/newcomer/weir/target/deb/weir_*.deb "$root"/home/newcomer/weir/target/deb/weir-lab_*.deb "$PACKAGE_TO/"

    say "root's make demo-vm"
    # `ip netns exec` puts the namespace's own in its place.
    mount -t sysfs -o ro sysfs "$root/sys"
    : >"$PACKAGE_TO/demo-vm"
    enter env HOME=/root make -C /home/newcomer/weir --no-print-directory demo-vm >"$work/demo-vm.log" 2>&1 ||
        { sed -n 's/^xtask: //p' "$work/demo-vm.log" && echo "it has failed"; } | head -n 1 >"$PACKAGE_TO/demo-vm"
fi
say "passed"
