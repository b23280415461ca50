#!/bin/busybox sh
# A test guest's only program. The kernel's messages go to the first serial port; the second (or
# what weir.shell names) takes commands, one a line, as "ID COMMAND", and answers each with its output
# and "@@ID STATUS".
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in /modules/*.ko; do insmod "$module"; done

shell=ttyS1
for word in $(cat /proc/cmdline); do
  case $word in
    weir.address=*) address=${word#*=} ;;
    weir.shell=*) shell=${word#*=} ;;
  esac
done
ip link set lo up
if [ -n "$address" ]; then
  ip link set eth0 up
  ip address add "$address" dev eth0
fi
# What this machine has to do before it takes commands.
if [ -e /setup.sh ]; then . /setup.sh; fi

stty -F "/dev/$shell" -echo -onlcr
exec <"/dev/$shell" >"/dev/$shell" 2>&1
echo "@@ready"
while read -r id command; do
  sh -c "$command" </dev/null
  echo "@@$id $?"
done
