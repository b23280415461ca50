#!/bin/sh
# The profile of the package, enforced: weir does under it what it does without, and what it may not is denied.
set -eu
cd /mnt
say() { echo "apparmor: $*"; }
fail() { echo "apparmor: FAILED: $*"; journalctl --no-pager -q -n 40; dmesg | tail -n 40; exit 1; }

grep -q apparmor /sys/kernel/security/lsm || fail "the kernel has no AppArmor"
systemctl start apparmor
modprobe tun
dpkg --install ./weir_*.deb >/dev/null || fail "install"
systemctl is-active weir >/dev/null || systemctl start weir || fail "start"
pid=$(systemctl show -P MainPID weir)
[ "$(cat "/proc/$pid/attr/current")" = 'weir (enforce)' ] || fail "profile: $(cat "/proc/$pid/attr/current")"
say "weir is confined by $(cat "/proc/$pid/attr/current")"

ip link show weir-lan >/dev/null || fail "no interface of the default network"
nft list tables | grep -q 'inet weir-lan-' || fail "no rules of the default network"
say "the default network, with a way out"
cat >>/etc/weir/weir.toml <<'T'
[uplink.lan]
kind = "tap"
name = "weir0"
[vif.web0]
socket_mode = "0660"
T
cat >/tmp/switch.toml <<'T'
placement = "dynamic"
pin_vcpus = true
group = "kvm"
api_listen = "127.0.0.1:9101"
api_token_file = "/etc/weir/api.token"
T
sed -i '/^\[switch\]/r /tmp/switch.toml' /etc/weir/weir.toml
echo a-token-of-this-test-and-of-no-other | install -o weir -m 0400 /dev/stdin /etc/weir/api.token
ready() {
    for _ in $(seq 60); do
        if weir stats >/dev/null 2>&1; then return; fi
        sleep 1
    done
    fail "weir does not answer"
}
systemctl restart weir || fail "restart"
ready
[ "$(stat -c '%G %a' /run/weir/control.sock)" = 'kvm 660' ] || fail "$(stat /run/weir/control.sock)"
ip link set lo up
curl -sf -H "Authorization: Bearer $(cat /etc/weir/api.token)" http://127.0.0.1:9101/metrics | grep -q weir_uptime_seconds ||
    fail "the API over TCP"
say "a group, and the API over TCP"
weir vif add db0 socket_mode=0660 || fail "weir vif add"
weir filter set db0 'tx drop tcp dst port http' || fail "weir filter set"
ip link show weir0 >/dev/null || fail "no TAP"
say "an uplink, interfaces, a filter"

# The boot ROM of a machine without a disk asks for an address: frames go out of its memory to the TAP. Restarted, weir
# takes its rings over.
frames() { cat /sys/class/net/weir0/statistics/rx_packets; }
await_frames() {
    before=$(frames)
    for _ in $(seq 300); do
        [ "$(frames)" -le "$before" ] || return 0
        sleep 1
    done
    weir stats
    fail "no frame from a guest's memory"
}
ip link set weir0 up
# shellcheck disable=SC2046 # Arguments.
qemu-system-x86_64 -accel tcg -nodefaults -display none -boot reboot-timeout=1000 \
    $(weir qemu-args web0 --memory 64M) &
await_frames
weir stats
say "frames from a guest's memory"
systemctl restart weir || fail "restart with a guest"
ready
ip link set weir0 up
await_frames
say "and after a restart"

# A boundary that lets all through would pass so far.
denied() { dmesg | grep 'apparmor="DENIED".*profile="weir"' || true; }
[ -z "$(denied)" ] || fail "weir is denied: $(denied)"
! aa-exec -p weir -- /usr/bin/weir check /etc/shadow || fail "the profile lets weir read /etc/shadow"
dmesg | grep -q 'apparmor="DENIED".*profile="weir".*/etc/shadow' || fail "/etc/shadow was not denied by the profile"
say passed
