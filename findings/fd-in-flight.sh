#!/bin/sh
# Who may still pass a file descriptor over a Unix socket while another process of the same user has 80 on the way.
#
# Subject:  Linux (seen on 6.18), SCM_RIGHTS. Needs python3. As root, it takes a user id that nobody has, since the
#           rule spares CAP_SYS_RESOURCE and CAP_SYS_ADMIN.
# Expected: descriptors on the way count for the process that sent them, which may have as many as its own
#           RLIMIT_NOFILE. A vhost-user front end that passes its first descriptor is under no limit yet.
# Seen:     they count for the user, and are compared with the limit of the process that sends next. A process with a
#           limit of 64 that has sent none is refused with ETOOMANYREFS, because another one, whose limit is
#           higher, has 80 unread. The latter may go on.
set -eu
python3 - <<'PYTHON'
import array, errno, os, platform, resource, socket

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(54321)
    os.setuid(54321)
read_end, _ = os.pipe()

def passes(sock, count):
    try:
        rights = array.array("i", [read_end] * count)
        sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        return "passes"
    except OSError as e:
        return errno.errorcode[e.errno]

def other_process(limit):
    """Another process, with this limit and a socket pair of its own, passes its first descriptor."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        sock, _peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        os.write(into, passes(sock, 1).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(out, 100).decode()

sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
before = other_process(64)
filled = {passes(sender, 20) for _ in range(4)}
during, roomy, same = other_process(64), other_process(256), passes(sender, 1)
for _ in range(5):
    socket.recv_fds(receiver, 1, 20)
after = other_process(64)

print("kernel", platform.release(), "own limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print("other process, limit 64, none on the way:     ", before)
print("other process, limit 64, 80 of the first:     ", during)
print("other process, limit 256, 80 of the first:    ", roomy)
print("the first process itself:                     ", same)
print("other process, limit 64, after they were read:", after)
assert filled == {"passes"}
assert (before, during, roomy, same, after) == ("passes", "ETOOMANYREFS", "passes", "passes", "passes"), \
    "the behaviour has changed"
PYTHON
