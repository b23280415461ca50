#!/bin/sh
# Two virtual devices are named to dpdk-testpmd, and one of them cannot be made.
#
# Packages: Debian 12 (bookworm) dpdk-dev and its libraries, 22.11.11-0+deb12u1 (others' versions below).
#           Needs an amd64 Linux with bookworm among its apt sources, and python3; and leave to make user
#           namespaces (or root), to hide an installed DPDK's drivers.
# Expected: a port that was asked for by name and is not there is an error: testpmd ends and says which one. A packet
#           generator with fewer ports than its user named measures something else.
# Seen:     the socket of the first device is in use, as a program that was killed leaves it. DPDK prints "failed to
#           initialize" and "Bus (vdev) probe failed", and goes on. testpmd has one port, says "Done" as always, and
#           its exit code is 0. The second device is port 0 now.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
dpdk=22.11.11-0+deb12u1
set -- dpdk-dev=$dpdk
for part in bitratestats bpf bus-auxiliary bus-dpaa bus-pci bus-vdev cmdline common-dpaax common-iavf common-mlx5- \
    crypto-scheduler cryptodev eal ethdev eventdev gro gso hash ip-frag kvargs latencystats mbuf mempool \
    mempool-dpaa mempool-ring meter metrics net net-bnxt net-bond net-dpaa net-i40e net-ice net-ixgbe net-mlx5- \
    net-null net-virtio pcapng pci pdump rcu reorder ring sched security telemetry timer; do
    set -- "$@" "librte-${part}23=$dpdk"
done
apt-get download -qq "$@" libibverbs1=44.0-2 ibverbs-providers=44.0-2 libelf1=0.188-2.1 libfdt1=1.6.1-4+b1 \
    libjansson4=2.14-2 libnuma1=2.0.16-1 libpcap0.8=1.10.3-1 libnl-3-200=3.7.0-0.2+b1 \
    libnl-route-3-200=3.7.0-0.2+b1 libbsd0=0.11.7-2 libmd0=1.0.4-2 libdbus-1-3=1.14.10-1~deb12u1 2>apt ||
    { cat apt >&2; exit 1; }
for deb in *.deb; do dpkg -x "$deb" root; done
libraries=$tmp/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$libraries:$tmp/root/lib/x86_64-linux-gnu"
# Drivers are preloaded, since DPDK loads none from below a directory that all may write, such as /tmp. Those of an
# installed DPDK are hidden: it would load them too.
pmds=$libraries/dpdk/pmds-23.0
export PRELOAD="$pmds/librte_mempool_ring.so.23 $pmds/librte_net_null.so.23 $pmds/librte_net_virtio.so.23"
cat >run.sh <<'SH'
installed=/usr/lib/x86_64-linux-gnu/dpdk
if [ -d $installed ]; then mount -t tmpfs none $installed; fi
LD_PRELOAD=$PRELOAD exec root/usr/bin/dpdk-testpmd --no-huge -m 64 --no-pci --no-telemetry --no-shconf \
    --vdev=net_virtio_user0,path=in-use,server=1 --vdev=net_null0 -- --interactive --total-num-mbufs=2048
SH

python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("in-use")'
result=0
printf '%s\n' 'show port summary all' quit | unshare -Urm sh -eu run.sh >printed 2>&1 || result=$?
grep -E 'failed to|probe failed|Number of available ports|net_null|^Done' printed
{
    sed -n -e 's/.*\(failed to initialize .*\)/\1/p' -e 's/^EAL: \(Bus .*\)/\1/p' \
        -e 's/.*\(Number of available ports.*\)/\1/p' printed
    grep -m1 '^Done$' printed
    echo "exit code $result"
} >seen
printf '%s\n' 'failed to initialize net_virtio_user0 device' 'Bus (vdev) probe failed.' 'Number of available ports: 1' \
    Done 'exit code 0' | diff - seen
