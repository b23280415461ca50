#!/bin/sh
# vm.sh WORK: boots WORK/root as a machine of its own, with Debian's kernel, and runs apparmor.sh in it.
# What that prints is WORK/vm.log; the kernel's messages are WORK/vm.console.
set -eu
work=$1
root=$work/root
rm -f "$work"/vm.* "$work"/*.ext4

mkfs.ext4 -q -d "$root" "$work/root.ext4" 6G
mkfs.ext4 -q -d "$work/given" "$work/given.ext4" 256M
kernel=$(basename "$root"/boot/vmlinuz-*)
run="mount /dev/vdb /mnt; sh /mnt/apparmor.sh >/dev/ttyS1 2>&1; poweroff -f"
# The machine's QEMU; the bind mount ends with run.sh.
mount --bind "$work" "$root/mnt"
timeout 1500 chroot "$root" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3G \
    -nodefaults -display none -no-reboot \
    -kernel "/boot/$kernel" -initrd "/boot/initrd.img-${kernel#vmlinuz-}" \
    -append "console=ttyS0 root=/dev/vda rw panic=-1 systemd.run=\"/bin/sh -c '$run'\"" \
    -drive file=/mnt/root.ext4,format=raw,if=virtio -drive file=/mnt/given.ext4,format=raw,if=virtio \
    -serial file:/mnt/vm.console -serial file:/mnt/vm.log </dev/null
rm "$work"/*.ext4
cat "$work/vm.log"
tail -n 1 "$work/vm.log" | grep -q '^apparmor: passed'
