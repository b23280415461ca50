#!/bin/busybox sh
# A guest's only program: an address, and a shell on the console.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done
for word in $(cat /proc/cmdline); do
    case $word in test.address=*) address=${word#*=} ;; esac
done
ip link set lo up
ip link set eth0 up
ip address add "$address" dev eth0
exec setsid sh -c 'exec sh </dev/ttyS0 >/dev/ttyS0 2>&1'
