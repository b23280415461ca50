#!/bin/sh
# Makes a new Debian into the host of the test: libvirt, QEMU, lintian, and a guest's disk to be. Runs once, in it.
set -eu
export DEBIAN_FRONTEND=noninteractive

. /etc/os-release
apt-get update -q
apt-get install -q -y --no-install-recommends apparmor bash-completion busybox-static curl dbus dosfstools fish iproute2 \
    iputils-ping kmod libpcap0.8 libvirt-clients libvirt-daemon-system lintian linux-image-cloud-amd64 man-db mtools nftables \
    openssl procps \
    prometheus python3 qemu-utils syslinux systemd systemd-sysv udev xz-utils zsh
# Debian 12's QEMU, 7.2, ends when a guest uses MSI-X on a vhost-user device without KVM.
[ "${VERSION_ID:-}" = 12 ] && newer=$VERSION_CODENAME-backports
apt-get install -q -y --no-install-recommends ${newer:+-t "$newer"} qemu-system-x86 seabios
# For later: a host with it has another /etc/resolv.conf.
apt-get install -q -y --download-only systemd-resolved

# A guest is a kernel, busybox and virtio's network driver.
kernel=$(echo /boot/vmlinuz-*)
modules=/lib/modules/${kernel#*vmlinuz-}
guest=$(mktemp -d)
mkdir -p "$guest/bin" "$guest/modules" "$guest/proc" "$guest/sys" "$guest/dev"
cp /bin/busybox "$guest/bin/"
# Debian 13 has virtio's bus in the kernel, and packs its modules.
modprobe --all --show-depends --set-version "${kernel#*vmlinuz-}" virtio_pci virtio_net |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
    while read -r module; do
        number=$((${number:-100} + 1))
        case $module in
        *.xz) xz -dc "$module" ;;
        *) cat "$module" ;;
        esac >"$guest/modules/$number.ko"
    done
install -m 755 /root/guest.sh "$guest/init"
(cd "$guest" && find . | busybox cpio -o -H newc) | gzip >/root/initrd
rm -rf "$guest"

# Disks that boot from a boot sector, as others' do.
for machine in web0:192.168.60.1/24 db0:192.168.60.2/24; do
    name=${machine%%:*}
    disk=/root/$name.img
    truncate -s 64M "$disk"
    mkfs.vfat "$disk" >/dev/null
    printf 'default l\nlabel l\nkernel vmlinuz\nappend initrd=initrd console=ttyS0 quiet panic=-1 test.address=%s\n' \
        "${machine#*:}" >/root/syslinux.cfg
    mcopy -i "$disk" "$kernel" ::vmlinuz
    mcopy -i "$disk" /root/initrd /root/syslinux.cfg ::
    syslinux --install "$disk"
    qemu-img convert -O qcow2 "$disk" "/var/lib/libvirt/images/$name.qcow2"
    rm "$disk"
done

# What a container and a machine without KVM lack.
printf 'security_driver = "none"\ncgroup_controllers = []\nnamespaces = []\n' >>/etc/libvirt/qemu.conf
systemctl mask systemd-networkd-wait-online.service libvirt-guests.service
