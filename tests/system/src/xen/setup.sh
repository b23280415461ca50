# What makes a Linux dom0 of this machine: xenstore, and consoles for its guests.
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t xenfs xenfs /proc/xen
for tool in ls read write list exists rm chmod; do ln -s xenstore "/bin/xenstore-$tool"; done
xenstored --pid-file /run/xenstored.pid
until xenstore-list / >/dev/null; do sleep 0.1; done
xen-init-dom0
xenconsoled --pid-file=/run/xenconsoled.pid
