//! libvirt in namespaces of a test's own: it sees none of the machine's directories, and the machine's libvirtd does not
//! see it.

/// The directories of libvirtd. Each is empty at its start.
const DIRECTORIES: &str =
    "/etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt";

/// Debian's user for QEMU, which may neither look into the machine's control groups nor be confined here. A socket of a
/// weir that root has started belongs to root's group.
const QEMU_CONF: &str =
    "security_driver = \"none\"\ncgroup_controllers = []\nnamespaces = []\ngroup = \"root\"\n";

/// The command that starts a script in its own namespaces. QEMU is a daemon: it ends with their first process.
pub const NAMESPACES: [&str; 8] =
    ["unshare", "--mount", "--uts", "--pid", "--kill-child", "--fork", "--mount-proc", "sh"];

/// The lines of a script that start libvirtd, and wait until it answers; `before` once its directories are there.
pub fn start_lines(before: &str) -> String {
    format!(
        "set -e\n\
         for dir in {DIRECTORIES}; do mkdir -p $dir; mount -t tmpfs -o mode=755 tmpfs $dir; done\n\
         printf '%s' '{QEMU_CONF}' >/etc/libvirt/qemu.conf\n\
         echo 'auth_unix_rw = \"none\"' >/etc/libvirt/libvirtd.conf\n\
         {before}\n\
         /usr/sbin/virtlogd --pid-file /run/libvirt/virtlogd.pid &\n\
         {}",
        daemon_lines()
    )
}

/// The lines that start libvirtd alone, again or for the first time.
pub fn daemon_lines() -> String {
    "/usr/sbin/libvirtd --timeout 600 --pid-file /run/libvirt/libvirtd.pid &\n\
     for i in $(seq 300); do virsh -c qemu:///system list >/dev/null 2>&1 && break; sleep 0.1; done\n"
        .into()
}
