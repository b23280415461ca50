#!/bin/sh
# The Ethernet address that U-Boot takes from a virtio network device.
#
# Packages: Debian 12 (bookworm) u-boot-qemu 2023.01+dfsg-2+deb12u3, qemu-system-arm 1:7.2+dfsg-7+deb12u18+b3 and
#           libraries (versions below). Needs an amd64 Linux with bookworm among its apt sources, and no root.
# Expected: firmware has the address that the device has, as Linux does with the same device, and two machines with
#           two addresses differ.
# Seen:     from a device that speaks virtio 0.9 as well as 1, which is QEMU's default, U-Boot reads the first byte
#           six times: all machines whose addresses begin with 52 are 52:52:52:52:52:52. With `disable-legacy=on` the
#           same device's address is right.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq u-boot-qemu=2023.01+dfsg-2+deb12u3 qemu-system-arm=1:7.2+dfsg-7+deb12u18+b3 libaio1=0.3.113-4 \
    libbpf1=1:1.1.2-0+deb12u1 libcapstone4=4.0.2-5 libdaxctl1=76.1-1 libelf1=0.188-2.1 libfdt1=1.6.1-4+b1 \
    libfuse3-3=3.14.0-4 libglib2.0-0=2.74.6-2+deb12u9 libibverbs1=44.0-2 libjpeg62-turbo=1:2.1.5-2 \
    libkmod2=30+20221128-1 libndctl6=76.1-1 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1 \
    libnuma1=2.0.16-1 libpixman-1-0=0.42.2-1 libpmem1=1.12.1-2 libpng16-16=1.6.39-2+deb12u5 librdmacm1=44.0-2 \
    libsasl2-2=2.1.28+dfsg-10 libslirp0=4.7.0-1 libssl3=3.0.20-1~deb12u2 liburing2=2.3-3 libvdeplug2=4.0.1-4 2>apt ||
    { cat apt >&2; exit 1; }
for deb in *.deb; do dpkg -x "$deb" root; done
export LD_LIBRARY_PATH="$tmp/root/usr/lib/x86_64-linux-gnu:$tmp/root/lib/x86_64-linux-gnu"

# Types at U-Boot's console until it has shown its address: at first a key ends the wait before it boots.
boot() {
    rm -f console shown
    mkfifo console
    root/usr/bin/qemu-system-aarch64 -machine virt -cpu cortex-a57 -m 256 -accel tcg -nodefaults -display none \
        -bios root/usr/lib/u-boot/qemu_arm64/u-boot.bin -serial stdio -netdev user,id=n \
        -device "virtio-net-pci,netdev=n,romfile=,mac=$1$2" <console >shown 2>&1 &
    exec 3>console
    for _ in $(seq 60); do
        printf '\nprintenv ethaddr\n' >&3
        sleep 1
        grep -q '^ethaddr=' shown && break
    done
    kill $!
    wait $! || true
    exec 3>&-
    echo "device $1$2: $(grep -m1 '^ethaddr=' shown | tr -d '\r')"
}
{
    boot 52:54:00:00:00:10 ""
    boot 52:54:00:00:00:20 ""
    boot 52:54:00:00:00:10 ,disable-legacy=on
} | tee seen
diff - seen <<'SEEN'
device 52:54:00:00:00:10: ethaddr=52:52:52:52:52:52
device 52:54:00:00:00:20: ethaddr=52:52:52:52:52:52
device 52:54:00:00:00:10,disable-legacy=on: ethaddr=52:54:00:00:00:10
SEEN
