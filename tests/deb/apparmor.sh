#!/bin/sh
# The profile of the package, enforced: weir does under it what it does without, and what it may not is denied.
set -eu
cd /mnt
say() { echo "apparmor: $*"; }
fail() { echo "apparmor: FAILED: $*"; journalctl --no-pager -q -n 40; dmesg | tail -n 40; exit 1; }

grep -q apparmor /sys/kernel/security/lsm || fail "the kernel has no AppArmor"
systemctl start apparmor
dpkg --install ./weir_*.deb >/dev/null || fail "install"
systemctl is-active weir >/dev/null || systemctl start weir || fail "start"
pid=$(systemctl show -P MainPID weir)
[ "$(cat "/proc/$pid/attr/current")" = 'weir (enforce)' ] || fail "profile: $(cat "/proc/$pid/attr/current")"
say "weir is confined by $(cat "/proc/$pid/attr/current")"

cat >>/etc/weir/weir.toml <<'T'
placement = "dynamic"
pin_vcpus = true
[uplink.lan]
kind = "tap"
name = "weir0"
[vif.web0]
socket_mode = "0660"
T
modprobe tun
ready() {
    for _ in $(seq 60); do
        if weir stats >/dev/null 2>&1; then return; fi
        sleep 1
    done
    fail "weir does not answer"
}
systemctl restart weir || fail "restart"
ready
weir vif add db0 socket_mode=0660 || fail "weir vif add"
weir filter set db0 'tx drop tcp dst port http' || fail "weir filter set"
ip link show weir0 >/dev/null || fail "no TAP"
say "an uplink, interfaces, a filter"

# A guest's memory, here in the machine's own QEMU, without libvirt's profile for it.
systemctl start libvirtd || fail "libvirtd"
sed -i "s/type='kvm'/type='qemu'/" /usr/share/doc/weir/examples/libvirt/*.xml
for name in web0 db0; do virsh -q create "/usr/share/doc/weir/examples/libvirt/$name.xml" || fail "$name"; done
guest() { python3 /mnt/console.py "$(virsh --quiet ttyconsole web0)" "$1" 'ping -c 5 192.168.60.2'; }
guest 600 || fail "no ping"
weir stats
systemctl restart weir || fail "restart with guests"
ready
weir vif add db0 socket_mode=0660 || fail "weir vif add"
guest 120 >/dev/null || fail "no ping after a restart"

# A boundary that lets all through would pass so far.
denied() { dmesg | grep 'apparmor="DENIED".*profile="weir"' || true; }
[ -z "$(denied)" ] || fail "weir is denied: $(denied)"
! aa-exec -p weir -- /usr/bin/weir check /etc/shadow || fail "the profile lets weir read /etc/shadow"
dmesg | grep -q 'apparmor="DENIED".*profile="weir".*/etc/shadow' || fail "/etc/shadow was not denied by the profile"
! aa-exec -p weir -- /bin/true 2>/dev/null || fail "the profile lets weir run other programs"
say passed
